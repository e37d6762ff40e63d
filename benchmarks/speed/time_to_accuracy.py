"""Seconds to a given validation accuracy, from scratch: the median over several seeds.

    python -m benchmarks time_to_accuracy --device cuda --archive file:///…/flower_photos_240.tgz

The time ends with the validation after the last epoch. It begins with the process, or with the first step. A seed that
is below the target after the last epoch has failed. The report has the model, sizes and params. (For comparison, the
tutorial from which this project began: ResNet-34, 30 epochs, 0.806 in 270 s on one GPU.)
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row
from pipeline.evaluation import figures
from pipeline.evaluation.figures import TrainFigures


@dataclass(frozen=True)
class Preset:
    images: int
    side: int  # of the drawn images
    packed_size: int  # of the packed ones
    seeds: int
    target: float  # accuracy
    train: dict[str, Any]


# Not yet tried on a GPU.
GPU = {
    "model": "resnet18", "precision": "bf16", "memory_format": "channels_last", "epochs": 40, "batch_size": 64,
    "crop": 160, "eval_crop": 224, "eval_resize": 256, "lr": 0.05, "warmup_epochs": 3,
}  # fmt: skip
CPU = {
    "model": "resnet18", "precision": "fp32", "epochs": 6, "batch_size": 16,
    "crop": 48, "eval_crop": 64, "eval_resize": 64, "crop_scale": [0.5, 1.0], "lr": 0.02, "warmup_epochs": 1,
}  # fmt: skip
PRESETS = {
    "cuda": Preset(3000, 240, 256, 5, 0.81, GPU),
    "cpu": Preset(600, 64, 64, 3, 0.35, CPU),
    "tiny": Preset(60, 48, 48, 1, 0.0, {**CPU, "epochs": 1}),
}


def run(folder: Path, seed: int, target: float) -> Row:
    """Train once with the seed."""
    workspace.set_params(folder, {"train": {"seed": seed}})
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
    }


def main() -> int:
    options = measuring.parser(__doc__, "time_to_accuracy").parse_args()
    preset = PRESETS[measuring.preset(options)]
    with measuring.exit_on_user_error("time_to_accuracy"), tempfile.TemporaryDirectory(prefix="accuracy-") as temporary:
        base = Path(temporary).resolve()
        photos = workspace.photos(options, base, preset.images, preset.side)
        recipe = {"target": preset.target, "packed_size": preset.packed_size, **preset.train}
        report = Report("time_to_accuracy", options, **photos.facts, **recipe)
        training = {"train": {"device": options.device, **preset.train}}
        packed_size = {"prepare": {"size": preset.packed_size}}
        if missing := report.missing(f"seed {seed}" for seed in range(preset.seeds)):
            workspace.create_prepared(base / "copy", workspace.ONE_PROCESS, packed_size, training, photos.params)
        for name in missing:
            report.add(name, run(base / "copy", int(name.removeprefix("seed ")), preset.target))
        rows = list(report.rows.values())
        report.conclude(
            target=preset.target,
            reached=f"{sum(row['reached'] for row in rows)} of {len(rows)}",
            from_start_s=median(row["from_start_s"] for row in rows),
            from_first_step_s=median(row["from_first_step_s"] for row in rows),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
