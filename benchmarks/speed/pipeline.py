"""`dvc repro` from a local archive to metrics, and again: wall time and peak memory of each stage.

    python -m benchmarks pipeline --archive file:///…/flower_photos_mini.tgz

A real `dvc repro` in a new copy of the project, several times; then `dvc repro` and `dvc status` with nothing changed.
The time of a stage is that of its processes, its memory the sum of their peaks. The time of DVC itself is the rest.
`first step` is from the start of `dvc repro` to the end of the first training step. Training is short.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row, WatchedRun
from pipeline.base import files

DVC = (sys.executable, "-m", "dvc")


@dataclass(frozen=True)
class Preset:
    images: int
    side: int  # of the drawn images
    packed_size: int  # of the packed ones
    turns: int
    train: dict[str, Any]


SMALL = {"model": "resnet18", "batch_size": 32, "crop": 64, "eval_crop": 64, "eval_resize": 64, "epochs": 1}
PRESETS = {
    "cuda": Preset(1000, 320, 256, 3, {"model": "resnet34", "precision": "bf16", "epochs": 3}),
    "cpu": Preset(200, 320, 256, 3, {**SMALL, "warmup_epochs": 0}),
    "tiny": Preset(50, 48, 32, 1, {**SMALL, "warmup_epochs": 0, "batch_size": 8, "crop": 32}),
}


def stage_of(command: list[str]) -> str:
    """The stage that this command line starts; empty if it starts none."""
    return command[3] if command[1:3] == ["-m", "pipeline"] and command[3:4] and command[3] in workspace.STAGES else ""


def stages(run: WatchedRun) -> dict[str, Row]:
    """Seconds and peak megabytes of each stage, and the seconds outside of stages."""
    rows: dict[str, Row] = {}
    for pid, record in sorted(run.processes.items()):
        if (name := stage_of(record.command)) and name not in rows:  # else a process of a launcher
            rows[name] = {"seconds": record.last - record.first, "peak_mb": run.peak_mb(run.tree(pid))}
    rest = run.seconds - sum(row["seconds"] for row in rows.values())
    return {**rows, "DVC itself": {"seconds": rest, "peak_mb": None}}


def run(folder: Path, photos: workspace.Photos, preset: Preset, device: str) -> dict[str, Row]:
    """The rows of one turn: all stages in a new copy, then `dvc repro` and `dvc status` with nothing changed."""
    training = {"train": {"device": device, **preset.train}, "prepare": {"size": preset.packed_size}}
    workspace.create_repository(folder, workspace.ONE_PROCESS)
    for params in (training, photos.params):
        workspace.set_params(folder, params)
    env = workspace.environment(folder.parent)
    total = measuring.run_watched((*DVC, "repro"), folder, env)
    # The event "crops" is written after the first step.
    first = min(time for tag, _, time in workspace.events(folder) if tag == "crops")
    rows = stages(total)
    rows["total"] = {"seconds": total.seconds, "peak_mb": max(row["peak_mb"] or 0 for row in rows.values())}
    rows["first step"] = {"seconds": first - total.began, "peak_mb": None}
    for command in ("repro", "status"):
        again = measuring.run_watched((*DVC, command), folder, env)
        rows[f"{command} again"] = {"seconds": again.seconds, "peak_mb": again.peak_mb()}
    return rows


def main() -> None:
    options = measuring.parser(__doc__, "pipeline").parse_args()
    preset = PRESETS[measuring.preset(options)]
    with workspace.temporary_folder("pipeline") as base:
        photos = workspace.photos(options, base, preset.images, preset.side)
        report = Report("pipeline", options, **photos.facts, packed_size=preset.packed_size, **preset.train)
        turns = []
        for turn in range(preset.turns):
            turns.append(run(base / f"copy{turn}", photos, preset, options.device))
            files.remove(base / f"copy{turn}")
        for name in turns[0]:
            seconds = measuring.medians([{"seconds": turn[name]["seconds"]} for turn in turns])
            peaks = [turn[name]["peak_mb"] for turn in turns]
            report.add(name, {**seconds, "peak_mb": None if None in peaks else max(peaks)})
        rows = report.rows
        report.conclude(
            total_s=rows["total"]["seconds"],
            first_step_s=rows["first step"]["seconds"],
            again_s=rows["repro again"]["seconds"],
            status_s=rows["status again"]["seconds"],
        )
