"""Seconds to a given validation accuracy, from scratch: the median over several seeds.

    python -m benchmarks time_to_accuracy --device cuda --archive file:///…/flower_photos_240.tgz
    python -m benchmarks time_to_accuracy --seeds 5 --variant "20 epochs: epochs=20" --variant "no hash: …"

On a GPU it trains the preset `fast`, with and without CUDA graphs. With --variant it trains what the variants change of
it, each as NAME: KEY=VALUE … with keys of `train`. The variants take turns. The time ends with the validation after the
last epoch. It begins with the process, or with the first step. A seed that is below the target after the last epoch has
failed. The report has the params, and each row the accuracy and the end of every epoch. (For comparison, the tutorial
from which this project began: ResNet-34, 30 epochs, 0.806 in 270 s on one GPU.)
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from ruamel.yaml import YAML

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row
from pipeline.base import files
from pipeline.checks import machine
from pipeline.dataset import split_table
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
GRAPHS = "with graphs"
Variants = dict[str, dict[str, Any]]  # settings of `train`, by the name of the variant; "": the recipe itself
ON_GPU: Variants = {"": {"cuda_graphs": False}, GRAPHS: {"cuda_graphs": True}}


def variant(text: str) -> tuple[str, dict[str, Any]]:
    """A variant as an option gives it: NAME: KEY=VALUE …; values are YAML."""
    name, _, settings = text.partition(":")
    pairs = (pair.partition("=") for pair in settings.split())
    return name.strip(), {key: YAML(typ="safe", pure=True).load(value) for key, _, value in pairs}


def names(seeds: int, variants: Variants) -> list[str]:
    """The rows: each seed with each variant."""
    return [f"seed {seed} {name}".rstrip() for seed in range(seeds) for name in variants]


def run(folder: Path, name: str, settings: dict[str, Any], target: float) -> Row:
    """Train once, with these settings, and with the seed that the row names."""
    workspace.set_params(folder, {"train": {**settings, "seed": int(name.split()[1])}})
    command = (sys.executable, "-m", "pipeline", "train")
    done = measuring.run_watched(command, folder, workspace.environment(folder.parent))
    events = workspace.events(folder)
    first = min(time for tag, _, time in events if tag == "crops")  # written after the first step
    epochs = [time for tag, _, time in events if tag == "accuracy/val"]
    history = files.read_csv(folder / "metrics/history.csv")
    ends = [(end, float(row["val_accuracy"])) for end, row in zip(epochs, history, strict=True)]
    workspace.forget_runs(folder)
    accuracy = figures.read(folder / "metrics", TrainFigures).val_accuracy
    return {
        "accuracy": accuracy,
        "reached": accuracy >= target,
        "from_start_s": epochs[-1] - done.began,
        "from_first_step_s": epochs[-1] - first,
        "until_target_s": next((end - first for end, acc in ends if acc >= target), None),
        "weights": files.sha256(folder / "models/model.safetensors")[:12],
        "epochs": [[end - first, accuracy] for end, accuracy in ends],
    }


def conclude(report: Report, variants: Variants, target: float) -> None:
    """Write how many seeds have reached the target, and the medians, of each variant.

    Also for how many seeds the training with graphs has the weights of the one without.
    """
    times = {}
    for variant in variants:
        suffix = f"_{variant.replace(' ', '_')}" if variant else ""
        rows = [row for name, row in report.rows.items() if " ".join(name.split()[2:]) == variant]
        times[f"reached{suffix}"] = f"{sum(row['reached'] for row in rows)} of {len(rows)}"
        for time in ("from_start_s", "from_first_step_s"):
            times[time + suffix] = median(row[time] for row in rows)
    if variants == ON_GPU:
        pairs = [(row, report.rows[f"{name} {GRAPHS}"]) for name, row in report.rows.items() if len(name.split()) == 2]
        equal = sum(one["weights"] == other["weights"] for one, other in pairs)
        times["same_weights_with_graphs"] = f"{equal} of {len(pairs)}"
    report.conclude(target=target, **times)


def main() -> None:
    parser = measuring.parser(__doc__, "time_to_accuracy")
    parser.add_argument("--seeds", type=int, help="number of seeds")
    parser.add_argument("--variant", action="append", type=variant, help="NAME: KEY=VALUE … with keys of train")
    options = parser.parse_args()
    preset = PRESETS[measuring.preset(options)]
    variants: Variants = dict(options.variant or (ON_GPU if options.device == "cuda" else {"": {}}).items())
    with workspace.temporary_folder("accuracy") as base:
        photos = workspace.photos(options, base, preset.images, preset.side)
        folder = base / "copy"
        changes = (workspace.ONE_PROCESS, {"train": {"device": options.device}}, preset.recipe(0), photos.params)
        workspace.create_prepared(folder, *changes, store=options.store)
        images = sum(row.split == "train" for row in split_table.kept_rows(folder / "data/split.csv"))
        recipe = preset.recipe(images)  # the epochs and the batch of a preset depend on the number of images
        workspace.set_params(folder, recipe)
        about = {"target": preset.target, "packed_size": recipe["prepare"]["size"], **recipe["train"]}
        report = Report(
            f"time_to_accuracy{'_variants' if options.variant else ''}", options, **photos.facts, images=images, **about
        )
        for name in report.missing(names(options.seeds or preset.seeds, variants)):
            settings = variants[" ".join(name.split()[2:])]
            report.add(name, run(folder, name, {**recipe["train"], **settings}, preset.target))
        conclude(report, variants, preset.target)
