"""7. The stages and an epoch on 1, 3 and 10 times the data: the cost grows as the data does, the memory does not.

    python -m benchmarks growth

Images are drawn, the smaller sets are the first of the largest. Seconds are the least of the turns: most of a small
set's are the start, and what else the machine does only adds to them. `linear` is what an image costs between 3 and 10
times the data over what it costs between 1 and 3 times: 1 where the cost is linear. `memory` is the peak at 10 times
the data over that at 1. Where the images are read while training decides its memory (run.residency), so it is told
apart from split's and prepare's. An epoch is the second of two, from one validation's end to the next one's: a start
takes longer than an epoch of the smallest set, and varies more.
"""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row
from pipeline.data import synthetic

TIMES = (1, 3, 10)
COMMANDS = {
    "split": (sys.executable, "-m", "pipeline.split"),
    "prepare": (sys.executable, "-m", "pipeline.prepare"),
    "epoch": (sys.executable, "-m", "pipeline.launch", "train"),
}


@dataclass(frozen=True)
class Form:
    images: int  # once
    side: int  # of them
    packed_size: int
    train: dict[str, Any]
    turns: dict[str, int]  # of each stage


SMALL = {"model": "resnet18", "batch_size": 32, "crop": 32, "eval_crop": 32, "eval_resize": 32, "epochs": 2}
FORMS = {
    "cuda": Form(500, 96, 256, {**SMALL, "crop": 224, "precision": "bf16"}, {"split": 5, "prepare": 5, "epoch": 3}),
    "cpu": Form(200, 64, 128, SMALL, {"split": 5, "prepare": 5, "epoch": 2}),
    "tiny": Form(60, 48, 32, SMALL, {"split": 1, "prepare": 1, "epoch": 1}),
}


def draw(folder: Path, images: int, side: int) -> None:
    """All images of the largest set, in class folders."""
    folder.mkdir(parents=True)
    synthetic.draw(folder, images, side, 0, measuring.cores())


def place(folder: Path, source: Path, images: int, form: Form, device: str) -> None:
    """A workplace with the first so many of the images, evenly of every kind."""
    params = {"train": {"device": device, "warmup_epochs": 0, **form.train}, "split": {"phash_distance": 0}}
    workspace.workplace(folder, workspace.ONE_PROCESS, params, {"prepare": {"size": form.packed_size}})
    for kind in synthetic.KINDS:
        (folder / "data/images" / kind).mkdir(parents=True)
        for path in sorted((source / kind).iterdir())[: images // len(synthetic.KINDS)]:
            os.link(path, folder / "data/images" / kind / path.name)
    (folder / "data/weights").mkdir()


def run(folder: Path, stage: str) -> Row:
    """Run a stage in a workplace."""
    watch = measuring.watched(COMMANDS[stage], folder, workspace.environment(folder.parent))
    ends = workspace.ends_of_epochs(folder)
    workspace.forget_runs(folder)
    return {"seconds": ends[-1] - ends[-2] if stage == "epoch" else watch.seconds, "peak_mb": watch.peak_mb()}


def linear(seconds: list[float]) -> float:
    """What more costs from the second set to the third over what it costs from the first to the second."""
    slopes = [(seconds[after] - seconds[before]) / (TIMES[after] - TIMES[before]) for before, after in ((0, 1), (1, 2))]
    return slopes[1] / slopes[0]


def main() -> int:
    options = measuring.parser(__doc__, "growth").parse_args()
    form = FORMS[measuring.form(options)]
    with tempfile.TemporaryDirectory(prefix="growth-") as temporary:
        base = Path(temporary).resolve()
        report = Report("growth", options, photos="drawn flowers", images=form.images, side=form.side, **form.train)
        draw(base / "all", TIMES[-1] * form.images, form.side)
        for times in TIMES:
            place(base / str(times), base / "all", times * form.images, form, options.device)
        for stage, count in form.turns.items():
            turns: dict[int, list[Row]] = {times: [] for times in TIMES}
            for times in TIMES * count:
                turns[times].append(run(base / str(times), stage))
            for times in TIMES:
                least = min(turn["seconds"] for turn in turns[times])
                report.add(f"{stage} {times}×", {**measuring.medians(turns[times]), "seconds": least})
        rows = {stage: [report.rows[f"{stage} {times}×"] for times in TIMES] for stage in form.turns}
        report.conclude(
            linear={stage: linear([row["seconds"] for row in found]) for stage, found in rows.items()},
            memory={stage: found[-1]["peak_mb"] / found[0]["peak_mb"] for stage, found in rows.items()},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
