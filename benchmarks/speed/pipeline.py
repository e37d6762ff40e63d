"""6. The whole way from a local archive to metrics: wall time and peak memory of each stage, and of doing it again.

    python -m benchmarks pipeline --archive file:///…/flower_photos_mini.tgz

A real `dvc repro` in a copy of the project, from nothing, several times; then `dvc repro` and `dvc status` with nothing
changed. A stage's time is that of its processes, its memory the sum of their peaks; DVC's own time is what remains of
the whole. `first step` is from the start of `dvc repro` to the end of the first training step. Training is short.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row, Watch
from pipeline.base import files

STAGES = ("download", "split", "prepare", "train", "evaluate")
DVC = (sys.executable, "-m", "dvc")


@dataclass(frozen=True)
class Form:
    images: int
    side: int  # of the drawn images
    packed_size: int  # of the packed ones
    turns: int
    train: dict[str, Any]


SMALL = {"model": "resnet18", "batch_size": 32, "crop": 64, "eval_crop": 64, "eval_resize": 64, "epochs": 1}
FORMS = {
    "cuda": Form(1000, 320, 256, 3, {"model": "resnet34", "precision": "bf16", "epochs": 3}),
    "cpu": Form(200, 320, 256, 3, {**SMALL, "warmup_epochs": 0}),
    "tiny": Form(50, 48, 32, 1, {**SMALL, "warmup_epochs": 0, "batch_size": 8, "crop": 32}),
}


def stage_of(words: list[str]) -> str:
    """The stage whose first process this command line starts; nothing if it is no such."""
    names = [name for name in STAGES if words[-2:] == ["pipeline.launch", name] or words[-1] == f"pipeline.{name}"]
    return names[0] if names and words[1] == "-m" else ""


def stages(watch: Watch) -> dict[str, Row]:
    """Seconds and peak megabytes of every stage, and seconds of what is not in one."""
    found: dict[str, Row] = {}
    for pid, one in sorted(watch.seen.items()):
        if (name := stage_of(one.words)) and name not in found:  # else a process of a launcher
            below = watch.below(pid)
            found[name] = {"seconds": one.last - one.first, "peak_mb": watch.peak_mb(below)}
    own = watch.seconds - sum(row["seconds"] for row in found.values())
    return {**found, "DVC itself": {"seconds": own, "peak_mb": None}}


def run(folder: Path, photos: workspace.Photos, form: Form, device: str) -> dict[str, Row]:
    """Everything from nothing, then nothing again: the rows of one turn."""
    training = {"train": {"device": device, **form.train}, "prepare": {"size": form.packed_size}}
    workspace.copy_project(folder, workspace.ONE_PROCESS)
    for params in (training, photos.params):
        workspace.set_params(folder, params)
    env = workspace.environment(folder.parent)
    whole = measuring.watched((*DVC, "repro"), folder, env)
    first = min(time for tag, _, time in workspace.events(folder) if tag == "crops")  # shown after the first step
    rows = stages(whole)
    rows["whole"] = {"seconds": whole.seconds, "peak_mb": max(row["peak_mb"] or 0 for row in rows.values())}
    rows["first step"] = {"seconds": first - whole.began, "peak_mb": None}
    for command in ("repro", "status"):
        again = measuring.watched((*DVC, command), folder, env)
        rows[f"{command} again"] = {"seconds": again.seconds, "peak_mb": again.peak_mb()}
    return rows


def main() -> int:
    options = measuring.parser(__doc__, "pipeline").parse_args()
    form = FORMS[measuring.form(options)]
    with measuring.refusals("pipeline"), tempfile.TemporaryDirectory(prefix="pipeline-") as temporary:
        base = Path(temporary).resolve()
        photos = workspace.photos(options, base, form.images, form.side)
        report = Report(
            "pipeline", options, photos=photos.words, sha256=photos.sha256, packed_size=form.packed_size, **form.train
        )
        turns = []
        for turn in range(form.turns):
            turns.append(run(base / f"copy{turn}", photos, form, options.device))
            files.remove(base / f"copy{turn}")
        for name in turns[0]:
            seconds = measuring.medians([{"seconds": turn[name]["seconds"]} for turn in turns])
            peaks = [turn[name]["peak_mb"] for turn in turns]
            report.add(name, {**seconds, "peak_mb": None if None in peaks else max(peaks)})
        rows = report.rows
        report.conclude(
            whole_s=rows["whole"]["seconds"],
            first_step_s=rows["first step"]["seconds"],
            again_s=rows["repro again"]["seconds"],
            status_s=rows["status again"]["seconds"],
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
