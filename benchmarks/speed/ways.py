"""4. Every way of spreading a training over the devices: seconds an epoch and memory of each device, and an image.

    python -m benchmarks ways --device cuda

Each way is a real run of the train stage, twice, in turns. An epoch is from one validation's end to the next one's; the
first is not counted. The batch is the same for all, over all devices. Memory is a process's peak of resident memory on
the CPU, and a GPU's own peak, as the driver tells it, on GPUs: with DataParallel the first has more than the others.
FOLDER/ways_<device>.svg shows both.
"""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row
from pipeline.config import machine, params, validity

Way = tuple[str, str, str]  # train.parallel, run.launcher, train.sync_bn
WAYS: tuple[Way, ...] = (
    ("single", "torchrun", "none"),
    ("dp", "torchrun", "none"),
    ("ddp", "torchrun", "none"),
    ("ddp", "spawn", "none"),
    ("ddp", "torchrun", "torch"),
    ("apex_ddp", "torchrun", "none"),
    ("apex_ddp", "torchrun", "apex"),
    ("elastic", "torchrun", "none"),
)
ALONE = ("single", "dp")  # one process, whatever devices there are
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Form:
    images: int
    side: int  # of the drawn images
    packed_size: int  # of the packed ones
    epochs: int
    turns: int
    train: dict[str, Any]
    ways: tuple[Way, ...] = WAYS


SMALL = {"model": "resnet18", "batch_size": 32, "crop": 64, "eval_crop": 64, "eval_resize": 64}
FORMS = {
    "cuda": Form(1500, 240, 256, 4, 2, {"model": "resnet34", "batch_size": 64, "precision": "fp16"}),
    "cpu": Form(160, 96, 64, 2, 2, SMALL),
    "tiny": Form(60, 48, 32, 2, 1, {**SMALL, "batch_size": 16, "crop": 32}, WAYS[:4:3]),
}


def title(way: Way) -> str:
    """A way's name in the report."""
    parallel, launcher, sync_bn = way
    return parallel + f" by {launcher}" * (parallel not in ALONE) + f", SyncBN of {sync_bn}" * (sync_bn != "none")


def changes(way: Way, devices: int) -> workspace.Changes:
    """The way as params."""
    parallel, launcher, sync_bn = way
    processes = 1 if parallel in ALONE else devices
    train = {"parallel": parallel, "sync_bn": sync_bn}
    return {"train": train, "run": {"launcher": launcher, "processes": processes}}


def refused(folder: Path, way: Way, devices: int) -> str:
    """Why a way cannot be had here; nothing if it can."""
    workspace.set_params(folder, changes(way, devices))
    return next(iter(validity.faults(params.load(folder / "params.yaml"), machine.read())), "")


def run(folder: Path, way: Way, devices: int, cuda: bool) -> Row:
    """Train once: seconds of each epoch but the first, megabytes of each device."""
    workspace.set_params(folder, changes(way, devices))
    before = gpu_memory() if cuda else []
    peaks = list(before)
    with polling(peaks) if cuda else nullcontext():
        command = (sys.executable, "-m", "pipeline.launch", "train")
        watch = measuring.watched(command, folder, workspace.environment(folder.parent))
    ends = workspace.ends_of_epochs(folder)
    ranks = {pid: one for pid, one in sorted(watch.seen.items()) if is_rank(one.words)}
    workspace.forget_runs(folder)
    if cuda:
        memory = [peak - idle for peak, idle in zip(peaks, before, strict=True)]
    else:  # without what a process has forked for a moment
        memory = [one.peak_mb for one in ranks.values() if one.parent not in ranks]
    return {"epochs": [after - end for end, after in pairwise(ends)], "memory": memory}


def is_rank(words: list[str]) -> bool:
    """Whether a command line is that of a process that trains: torchrun's, or multiprocessing's for `spawn`."""
    return "pipeline.train" in words or any("spawn_main" in word for word in words)


def gpu_memory() -> list[float]:
    """Megabytes in use on every GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [float(line) for line in subprocess.check_output(query, text=True).splitlines()]


@contextmanager
def polling(peaks: list[float]) -> Iterator[None]:
    """Inside the block `peaks` grow to the most memory in use."""
    over = threading.Event()

    def poll() -> None:
        while not over.wait(POLL_SECONDS):
            peaks[:] = map(max, peaks, gpu_memory())

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def main() -> int:
    options = measuring.parser(__doc__, "ways").parse_args()
    form, cuda = FORMS[measuring.form(options)], options.device == "cuda"
    devices = machine.read().cuda_devices if cuda else 2  # two processes, which meet over gloo, on a CPU
    with measuring.refusals("ways"), tempfile.TemporaryDirectory(prefix="ways-") as temporary:
        base = Path(temporary).resolve()
        photos = workspace.photos(options, base, form.images, form.side)
        report = Report("ways", options, photos=photos.words, sha256=photos.sha256, devices=devices, **form.train)
        training = {"train": {"device": options.device, **form.train, "epochs": form.epochs}}
        workspace.workplace(
            base / "copy", workspace.ONE_PROCESS, {"prepare": {"size": form.packed_size}}, training, photos.params
        )
        ways = []
        for way in form.ways:
            if reason := refused(base / "copy", way, devices):
                report.leave_out(title(way), reason)
            else:
                ways.append(way)
        wanted = report.missing(map(title, ways))
        if wanted:
            workspace.prepare(base / "copy")
        turns: dict[str, list[Row]] = {name: [] for name in wanted}
        for way in [way for way in ways if title(way) in wanted] * form.turns:
            turns[title(way)].append(run(base / "copy", way, devices, cuda))
        for name, found in turns.items():
            seconds = median(epoch for turn in found for epoch in turn["epochs"])
            memory = [round(max(each), 1) for each in zip(*(turn["memory"] for turn in found), strict=True)]
            report.add(name, {"epoch_s": seconds, "memory_mb": memory})
        image = options.out / f"ways_{options.device}.svg"
        image.write_text(drawn(report.rows), encoding="utf-8")
        report.conclude(fastest=min(report.rows, key=lambda name: report.rows[name]["epoch_s"]), image=image.name)
    return 0


# ---------------------------------------------------------------- the image

LINE, LEFT, WIDTH = 22, 230, 300  # pixels: a bar's line, the names' column, the longest bar
BLUE, ORANGE = "#4878a8", "#d08040"


def drawn(rows: dict[str, Row]) -> str:
    """Bars as SVG: on the left seconds an epoch, on the right the memory of every device, one bar each."""
    height = LINE * (2 + len(rows))
    slowest = max(row["epoch_s"] for row in rows.values())
    fullest = max(max(row["memory_mb"]) for row in rows.values())
    marks = [text(LEFT, 0, "seconds an epoch"), text(LEFT + WIDTH + 90, 0, "MB of each device")]
    for line, (name, row) in enumerate(rows.items(), 1):
        marks += [text(0, line, name), bar(LEFT, line, WIDTH * row["epoch_s"] / slowest, BLUE)]
        marks.append(text(LEFT + 4 + WIDTH * row["epoch_s"] / slowest, line, f"{row['epoch_s']:.2f}"))
        thick = 1 / len(row["memory_mb"])
        for device, memory in enumerate(row["memory_mb"]):
            start = LEFT + WIDTH + 90
            marks.append(bar(start, line + device * 0.7 * thick, WIDTH * memory / fullest, ORANGE, thick))
        marks.append(text(start + 4 + WIDTH * max(row["memory_mb"]) / fullest, line, f"{max(row['memory_mb']):,.0f}"))
    style = 'font-family="sans-serif" font-size="12" fill="#333"'
    size = f'width="{LEFT + 2 * WIDTH + 160}" height="{height}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', *marks, "</svg>", ""])


def text(x: float, line: float, words: str) -> str:
    return f'<text x="{x:.0f}" y="{LINE * line + 15:.0f}">{escape(words)}</text>'


def bar(x: float, line: float, length: float, colour: str, thick: float = 1.0) -> str:
    height = 0.7 * LINE * thick - 1
    return f'<rect x="{x}" y="{LINE * line + 3:.1f}" width="{length:.1f}" height="{height:.1f}" fill="{colour}"/>'


if __name__ == "__main__":
    sys.exit(main())
