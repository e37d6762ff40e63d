"""Tables of docs/ that are made of the presets, and of the precisions that the rules allow."""

from pipeline.checks.machine import Machine
from pipeline.planning import presets
from pipeline.planning.presets import Recipe
from tests.documents.markdown import table
from tests.helpers.choices import CPU_ONLY, PARALLEL, PRECISION, TWO_GPUS
from tests.test_ways import Cell, faults

PLACES = {
    "`train.precision` on the CPU": ("cpu", CPU_ONLY),
    "on GPUs": ("cuda", Machine(2, "missing", True)),
    "on GPUs with Apex": ("cuda", TWO_GPUS),
}


def values(recipe: Recipe) -> tuple[object, ...]:
    """The values of a preset."""
    first = recipe.values["train.crop_from"]
    sides = range(first, recipe.size + 1, 32) if first else [recipe.size]
    cells: tuple[object, ...] = (recipe.batch, recipe.lr, "–", recipe.epochs[0])
    if recipe.steps:
        cells = (recipe.batch, recipe.lr, f"{recipe.steps:,}", f"{recipe.epochs[0]} to {recipe.epochs[1]}")
    elif recipe.values["train.freeze_backbone"]:
        cells = ("–", "–", "none: the head is solved", "–")
    return recipe.model, ", ".join(map(str, sides)), *cells, recipe.values["train.mixup"] or "–"


def of_presets() -> str:
    """The values of each preset, once if they are the same on a CPU and on a GPU."""
    rows = []
    for name, recipe in presets.GPU.items():
        if name not in presets.CPU:
            rows.append((f"`{name}`", "GPU", *values(recipe)))
        elif values(presets.CPU[name]) == values(recipe):
            rows.append((f"`{name}`", "both", *values(recipe)))
        else:
            rows += [(f"`{name}`", on, *values(of[name])) for on, of in (("CPU", presets.CPU), ("GPU", presets.GPU))]
    return table("preset | on | model | pixels | batch | rate | training steps, about | epochs | mixup", rows)


def ways() -> str:
    """The precisions that are not refused with each way of parallelism, in each of the places."""
    rows = []
    for parallel in PARALLEL:
        cells = [Cell("torchrun", parallel, precision, "none", "contiguous", "cpu") for precision in PRECISION]
        allowed = [
            [cell.precision for cell in cells if not faults(cell._replace(device=device), machine)]
            for device, machine in PLACES.values()
        ]
        rows.append((f"`{parallel}`", *(" ".join(names) or "–" for names in allowed)))
    return table(" | ".join(["`train.parallel`", *PLACES]), rows)
