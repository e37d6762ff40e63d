"""Seconds to a given validation accuracy, from scratch: the median over several seeds.

    python -m benchmarks time_to_accuracy --device cuda --archive file:///…/flower_photos_240.tgz

On a GPU it trains the preset `fast`, with and without CUDA graphs. The time ends with the validation after the last
epoch. It begins with the process, or with the first step. A seed that is below the target after the last epoch has
failed. The report has the params. (For comparison, the tutorial from which this project began: ResNet-34, 30 epochs,
0.806 in 270 s on one GPU.)
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row
from pipeline.base import files
from pipeline.config import machine
from pipeline.data import split_table
from pipeline.evaluation import figures
from pipeline.evaluation.figures import TrainFigures
from pipeline.planning import presets


@dataclass(frozen=True)
class Preset:
    images: int
    side: int  # of the drawn images
    seeds: int
    target: float  # accuracy
    recipe: Callable[[int], workspace.Changes]  # of the number of training images


def fast(images: int) -> workspace.Changes:
    """The preset `fast` on this machine."""
    result: dict[str, dict[str, Any]] = {}
    for key, value in presets.changes("fast", machine.read(), images).items():
        section, _, name = key.partition(".")
        result.setdefault(section, {})[name] = value
    return result


def small(images: int, epochs: int = 6) -> workspace.Changes:
    """A short training on a CPU."""
    train = {
        "model": "resnet18", "precision": "fp32", "epochs": epochs, "batch_size": 16,
        "crop": 48, "eval_crop": 64, "eval_resize": 64, "crop_scale": [0.5, 1.0], "lr": 0.02, "warmup_epochs": 1,
    }  # fmt: skip
    return {"prepare": {"size": 64}, "train": train}


PRESETS = {
    "cuda": Preset(3000, 240, 3, 0.81, fast),
    "cpu": Preset(600, 64, 3, 0.35, small),
    "tiny": Preset(60, 48, 1, 0.0, partial(small, epochs=1)),
}
GRAPHS = " with graphs"


def names(preset: Preset, device: str) -> list[str]:
    """The rows: a seed, on a GPU with and without CUDA graphs."""
    options = ("", GRAPHS) if device == "cuda" else ("",)
    return [f"seed {seed}{option}" for seed in range(preset.seeds) for option in options]


def run(folder: Path, name: str, target: float) -> Row:
    """Train once, with the seed and the option that the row names."""
    seed = int(name.removeprefix("seed ").removesuffix(GRAPHS))
    workspace.set_params(folder, {"train": {"seed": seed, "cuda_graphs": name.endswith(GRAPHS)}})
    command = (sys.executable, "-m", "pipeline", "train")
    done = measuring.run_watched(command, folder, workspace.environment(folder.parent))
    events = workspace.events(folder)
    first = min(time for tag, _, time in events if tag == "crops")  # written after the first step
    last = max(time for tag, _, time in events if tag == "accuracy/val")
    workspace.forget_runs(folder)
    accuracy = figures.read(folder / "metrics", TrainFigures).val_accuracy
    return {
        "accuracy": accuracy,
        "reached": accuracy >= target,
        "from_start_s": last - done.began,
        "from_first_step_s": last - first,
        "weights": files.sha256(folder / "models/model.safetensors")[:12],
    }


def conclude(report: Report, target: float) -> None:
    """Write how many seeds have reached the target, and the medians; those with graphs beside those without.

    Also for how many seeds both have the same weights.
    """
    plain, graphs = (
        [row for name, row in report.rows.items() if name.endswith(GRAPHS) is has_graphs]
        for has_graphs in (False, True)
    )
    times = {}
    for suffix, rows in (("", plain), ("_with_graphs", graphs)):
        if rows:
            times[f"reached{suffix}"] = f"{sum(row['reached'] for row in rows)} of {len(rows)}"
            for time in ("from_start_s", "from_first_step_s"):
                times[time + suffix] = median(row[time] for row in rows)
    if graphs:
        equal = sum(one["weights"] == other["weights"] for one, other in zip(plain, graphs, strict=True))
        times["same_weights_with_graphs"] = f"{equal} of {len(plain)}"
    report.conclude(target=target, **times)


def main() -> None:
    options = measuring.parser(__doc__, "time_to_accuracy").parse_args()
    preset = PRESETS[measuring.preset(options)]
    with workspace.temporary_folder("accuracy") as base:
        photos = workspace.photos(options, base, preset.images, preset.side)
        folder = base / "copy"
        changes = (workspace.ONE_PROCESS, {"train": {"device": options.device}}, preset.recipe(0), photos.params)
        workspace.create_prepared(folder, *changes, store=options.store)
        images = sum(row["split"] == "train" for row in split_table.kept_rows(folder / "data/split.csv"))
        recipe = preset.recipe(images)  # the epochs and the batch of a preset depend on the number of images
        workspace.set_params(folder, recipe)
        about = {"target": preset.target, "packed_size": recipe["prepare"]["size"], **recipe["train"]}
        report = Report("time_to_accuracy", options, **photos.facts, images=images, **about)
        for name in report.missing(names(preset, options.device)):
            report.add(name, run(folder, name, preset.target))
        conclude(report, preset.target)
