"""4. Every way to train on several devices: seconds per epoch and memory per device, also as an image.

    python -m benchmarks ways --device cuda

Each way is a real run of the train stage, twice; the ways take turns. An epoch is from the end of one validation to the
end of the next; the first is not counted. The global batch is the same for all. Memory on the CPU is the peak resident
memory of each process; on GPUs it is the peak of each GPU, as the driver reports it. FOLDER/ways_<device>.svg shows
time and memory.
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
ALONE = ("single", "dp")  # these have one process, also on several devices
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Preset:
    images: int
    side: int  # of the drawn images
    packed_size: int  # of the packed ones
    epochs: int
    turns: int
    train: dict[str, Any]
    ways: tuple[Way, ...] = WAYS


SMALL = {"model": "resnet18", "batch_size": 32, "crop": 64, "eval_crop": 64, "eval_resize": 64}
PRESETS = {
    "cuda": Preset(1500, 240, 256, 4, 2, {"model": "resnet34", "batch_size": 64, "precision": "fp16"}),
    "cpu": Preset(160, 96, 64, 2, 2, SMALL),
    "tiny": Preset(60, 48, 32, 2, 1, {**SMALL, "batch_size": 16, "crop": 32}, WAYS[:4:3]),
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
    """Why a way cannot run here; empty if it can."""
    workspace.set_params(folder, changes(way, devices))
    return str(next(iter(validity.faults(params.load(folder / "params.yaml"), machine.read())), ""))


def run(folder: Path, way: Way, devices: int, cuda: bool) -> Row:
    """Train once: seconds of each epoch except the first, megabytes of each device."""
    workspace.set_params(folder, changes(way, devices))
    before = gpu_memory() if cuda else []
    peaks = list(before)
    with polling(peaks) if cuda else nullcontext():
        command = (sys.executable, "-m", "pipeline.launch", "train")
        done = measuring.run_watched(command, folder, workspace.environment(folder.parent))
    ends = workspace.ends_of_epochs(folder)
    ranks = {pid: record for pid, record in sorted(done.processes.items()) if is_rank(record.command)}
    workspace.forget_runs(folder)
    if cuda:
        memory = [peak - idle for peak, idle in zip(peaks, before, strict=True)]
    else:  # without short-lived forks of a rank
        memory = [record.peak_mb for record in ranks.values() if record.parent not in ranks]
    return {"epochs": [after - end for end, after in pairwise(ends)], "memory": memory}


def is_rank(command: list[str]) -> bool:
    """Whether a command line is that of a rank: started by torchrun, or by multiprocessing for `spawn`."""
    return "pipeline.train" in command or any("spawn_main" in word for word in command)


def gpu_memory() -> list[float]:
    """Megabytes in use on each GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [float(line) for line in subprocess.check_output(query, text=True).splitlines()]


@contextmanager
def polling(peaks: list[float]) -> Iterator[None]:
    """Inside the block `peaks` is updated to the peak memory of each GPU."""
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
    preset, cuda = PRESETS[measuring.preset(options)], options.device == "cuda"
    devices = machine.read().cuda_devices if cuda else 2  # on a CPU two processes with gloo
    with measuring.exit_on_user_error("ways"), tempfile.TemporaryDirectory(prefix="ways-") as temporary:
        base = Path(temporary).resolve()
        photos = workspace.photos(options, base, preset.images, preset.side)
        report = Report("ways", options, **photos.facts, devices=devices, **preset.train)
        training = {"train": {"device": options.device, **preset.train, "epochs": preset.epochs}}
        workspace.create(
            base / "copy", workspace.ONE_PROCESS, {"prepare": {"size": preset.packed_size}}, training, photos.params
        )
        ways = []
        for way in preset.ways:
            if reason := refused(base / "copy", way, devices):
                report.leave_out(title(way), reason)
            else:
                ways.append(way)
        wanted = report.missing(map(title, ways))
        if wanted:
            workspace.prepare(base / "copy")
        turns: dict[str, list[Row]] = {name: [] for name in wanted}
        for way in [way for way in ways if title(way) in wanted] * preset.turns:
            turns[title(way)].append(run(base / "copy", way, devices, cuda))
        for name, of_way in turns.items():
            seconds = median(epoch for turn in of_way for epoch in turn["epochs"])
            memory = [round(max(each), 1) for each in zip(*(turn["memory"] for turn in of_way), strict=True)]
            report.add(name, {"epoch_s": seconds, "memory_mb": memory})
        image = options.out / f"ways_{options.device}.svg"
        image.write_text(drawn(report.rows), encoding="utf-8")
        report.conclude(fastest=min(report.rows, key=lambda name: report.rows[name]["epoch_s"]), image=image.name)
    return 0


# ---------------------------------------------------------------- the image

LINE, LEFT, WIDTH = 22, 230, 300  # pixels: height of a line, width of the names' column, length of the longest bar
BLUE, ORANGE = "#4878a8", "#d08040"


def drawn(rows: dict[str, Row]) -> str:
    """An SVG of bars: on the left seconds per epoch, on the right one bar for the memory of each device."""
    height = LINE * (2 + len(rows))
    slowest = max(row["epoch_s"] for row in rows.values())
    fullest = max(max(row["memory_mb"]) for row in rows.values())
    marks = [text(LEFT, 0, "seconds per epoch"), text(LEFT + WIDTH + 90, 0, "MB of each device")]
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


def text(x: float, line: float, content: str) -> str:
    return f'<text x="{x:.0f}" y="{LINE * line + 15:.0f}">{escape(content)}</text>'


def bar(x: float, line: float, length: float, colour: str, thick: float = 1.0) -> str:
    height = 0.7 * LINE * thick - 1
    return f'<rect x="{x}" y="{LINE * line + 3:.1f}" width="{length:.1f}" height="{height:.1f}" fill="{colour}"/>'


if __name__ == "__main__":
    sys.exit(main())
