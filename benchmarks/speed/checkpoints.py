"""11. Seconds of 30 short epochs: a checkpoint after every epoch, and run.epoch_checkpoint_seconds as by default.

    python -m benchmarks checkpoints

A checkpoint of ResNet-18 has 90 MB and is synced to the disk. `seconds` are those of the whole stage, its start and its
last checkpoint included; `epochs_s` those from the first step to the last validation. The figures are the first row
over the second one.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row
from pipeline.config import params

BEFORE, AFTER = "after every epoch", "as by default"


@dataclass(frozen=True)
class Preset:
    images: int
    side: int
    turns: int
    train: dict[str, Any]


SHORT = {
    "model": "resnet18", "batch_size": 16, "crop": 32, "eval_crop": 32, "eval_resize": 32, "lr": 0.02, "epochs": 30,
}  # fmt: skip
PRESETS = {
    "cuda": Preset(2000, 128, 5, {**SHORT, "precision": "bf16", "crop": 96, "eval_crop": 128, "eval_resize": 128}),
    "cpu": Preset(200, 32, 5, SHORT),
    "tiny": Preset(60, 32, 1, {**SHORT, "epochs": 3}),
}


def run(folder: Path, seconds: int) -> Row:
    """Train once, with this value of run.epoch_checkpoint_seconds."""
    workspace.set_params(folder, {"run": {"epoch_checkpoint_seconds": seconds}})
    command = (sys.executable, "-m", "pipeline.launch", "train")
    done = measuring.run_watched(command, folder, workspace.environment(folder.parent))
    events = workspace.events(folder)
    first = min(time for tag, _, time in events if tag == "crops")  # written after the first step
    workspace.forget_runs(folder)
    return {"seconds": done.seconds, "epochs_s": max(time for tag, _, time in events if tag == "accuracy/val") - first}


def main() -> int:
    options = measuring.parser(__doc__, "checkpoints", photos=False).parse_args()
    preset = PRESETS[measuring.preset(options)]
    waits = {BEFORE: 0, AFTER: params.load().run.epoch_checkpoint_seconds}
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as temporary:
        base = Path(temporary).resolve()
        drawn = {"source": "synthetic", "synthetic": {"count": preset.images, "size": 2 * preset.side}}
        report = Report(
            "checkpoints",
            options,
            photos=f"{preset.images} drawn flowers",
            side=preset.side,
            epoch_checkpoint_seconds=waits[AFTER],
            **preset.train,
        )
        workspace.create_prepared(
            base / "copy", workspace.ONE_PROCESS, {"train": {"device": options.device, **preset.train}},
            {"data": drawn, "split": {"phash_distance": 0}, "prepare": {"size": preset.side}},
        )  # fmt: skip
        turns: dict[str, list[Row]] = {name: [] for name in waits}
        for name in [*waits] * preset.turns:
            turns[name].append(run(base / "copy", waits[name]))
        for name, rows in turns.items():
            report.add(name, measuring.medians(rows))
        before, after = (report.rows[name] for name in (BEFORE, AFTER))
        report.conclude(times={figure: before[figure] / after[figure] for figure in before})
    return 0


if __name__ == "__main__":
    sys.exit(main())
