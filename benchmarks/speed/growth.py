"""Stages and epochs on 1, 3 and 10 times the data: time grows linearly with the data, memory does not grow.

    python -m benchmarks growth

Images are drawn; a smaller set is the beginning of the largest. Seconds are the minimum over the turns, because other
load only adds to them. `linear` is the time per image between 3 and 10 times the data, over that between 1 and 3 times:
1 if the time is linear. `memory` is the peak memory at 10 times the data over that at 1. The memory of training depends
on run.residency, so it has its own figure. The epoch is the second of two, from the end of one validation to the end of
the next: a start takes longer than an epoch of the smallest set, and varies more.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row
from pipeline.base import linux
from pipeline.sources import synthetic

TIMES = (1, 3, 10)
COMMANDS = {"split": "split", "prepare": "prepare", "epoch": "train"}


@dataclass(frozen=True)
class Preset:
    images: int  # of the smallest set
    side: int  # of the images
    packed_size: int
    train: dict[str, Any]
    turns: dict[str, int]  # of each stage


SMALL = {"model": "resnet18", "batch_size": 32, "crop": 32, "eval_crop": 32, "eval_resize": 32, "epochs": 2}
PRESETS = {
    "cuda": Preset(500, 96, 256, {**SMALL, "crop": 224, "precision": "bf16"}, {"split": 5, "prepare": 5, "epoch": 3}),
    "cpu": Preset(200, 64, 128, SMALL, {"split": 5, "prepare": 5, "epoch": 2}),
    "tiny": Preset(
        30, 48, 32, {**SMALL, "model": "shufflenet_v2_x0_5", "batch_size": 8}, {"split": 1, "prepare": 1, "epoch": 1}
    ),
}


def draw(folder: Path, images: int, side: int) -> None:
    """All images of the largest set, in class folders."""
    folder.mkdir(parents=True)
    synthetic.draw(folder, images, side, 0, linux.usable_cores())


def make_workspace(folder: Path, source: Path, images: int, preset: Preset, device: str) -> None:
    """Create a workspace with the first `images` images, the same number of each class."""
    params = {"train": {"device": device, "warmup_epochs": 0, **preset.train}, "split": {"phash_distance": 0}}
    workspace.create(folder, workspace.ONE_PROCESS, params, {"prepare": {"size": preset.packed_size}})
    for kind in synthetic.KINDS:
        (folder / "data/images" / kind).mkdir(parents=True)
        for path in sorted((source / kind).iterdir())[: images // len(synthetic.KINDS)]:
            os.link(path, folder / "data/images" / kind / path.name)
    (folder / "data/weights").mkdir()


def run(folder: Path, stage: str) -> Row:
    """Run a stage, or for "epoch" a training of two epochs."""
    command = (sys.executable, "-m", "pipeline", COMMANDS[stage])
    done = measuring.run_watched(command, folder, workspace.environment(folder.parent))
    ends = workspace.ends_of_epochs(folder)
    workspace.forget_runs(folder)
    return {"seconds": ends[-1] - ends[-2] if stage == "epoch" else done.seconds, "peak_mb": done.peak_mb()}


def linear(seconds: list[float]) -> float:
    """The seconds per image from the second set to the third, over those from the first to the second."""
    slopes = [(seconds[after] - seconds[before]) / (TIMES[after] - TIMES[before]) for before, after in ((0, 1), (1, 2))]
    return slopes[1] / slopes[0]


def main() -> None:
    options = measuring.parser(__doc__, "growth").parse_args()
    preset = PRESETS[measuring.preset(options)]
    with workspace.temporary_folder("growth") as base:
        report = Report(
            "growth", options, photos="drawn flowers", images=preset.images, side=preset.side, **preset.train
        )
        draw(base / "all", TIMES[-1] * preset.images, preset.side)
        for times in TIMES:
            make_workspace(base / str(times), base / "all", times * preset.images, preset, options.device)
        for stage, count in preset.turns.items():
            turns: dict[int, list[Row]] = {times: [] for times in TIMES}
            for times in TIMES * count:
                turns[times].append(run(base / str(times), stage))
            for times in TIMES:
                least = min(turn["seconds"] for turn in turns[times])
                report.add(f"{stage} {times}×", {**measuring.medians(turns[times]), "seconds": least})
        rows = {stage: [report.rows[f"{stage} {times}×"] for times in TIMES] for stage in preset.turns}
        report.conclude(
            linear={stage: linear([row["seconds"] for row in of_stage]) for stage, of_stage in rows.items()},
            memory={stage: of_stage[-1]["peak_mb"] / of_stage[0]["peak_mb"] for stage, of_stage in rows.items()},
        )
