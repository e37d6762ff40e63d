"""CPU and wall time per image to load normalized batches: our loader and the usual ones.

    python -m benchmarks loader --archive file:///…/flower_photos_mini.tgz

Ours reads the packed images, which `prepare` writes once; the row `prepare, once` has the CPU time per image for that.
It uses one thread, as training does by default, or one thread per core. The others decode the same files in each epoch.
A turn is complete epochs for about a second; the first turn is not counted. DALI and FFCV take part if they are
installed. DALI: pip install nvidia-dali-cuda130. FFCV: apt-get install g++ pkg-config libopencv-dev libturbojpeg0-dev,
then pip install --no-deps ffcv opencv-python-headless.
"""

import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row, Worker
from pipeline.base import linux
from pipeline.base.errors import Fault, UserError
from pipeline.dataset import split_table

OURS, OURS_THREADS, OURS_GPU, PREPARE = "ours", "ours, one thread per core", "ours on the GPU", "prepare, once"


@dataclass(frozen=True)
class Preset:
    images: int  # of the drawn archive
    side: int  # of its images
    batch: int
    turns: int
    seconds: float  # minimum length of a turn
    sides: tuple[int, ...] = (64, 128, 224)  # of the crops


PRESETS = {
    "cpu": Preset(200, 320, 64, 5, 1.0),
    "cuda": Preset(400, 320, 64, 5, 1.0),
    "tiny": Preset(50, 48, 8, 1, 0.3, (32,)),
}


def training(preset: Preset) -> workspace.Changes:
    """Params of a training that is longer than any turn."""
    train = {"model": "resnet18", "batch_size": preset.batch, "epochs": 1000}
    return {"train": {**workspace.ONE_PROCESS["train"], **train}}


# ---------------------------------------------------------------- a contender


def worker(name: str, folder: str, batch_size: str) -> None:
    """The process of a contender. A turn loads complete epochs for at least the given seconds and counts the images."""
    import torch

    from benchmarks.harness import contenders
    from benchmarks.speed import ours

    batch, cuda, threads = int(batch_size), name == OURS_GPU, linux.usable_cores() if name == OURS_THREADS else 1
    with ours.ready(Path(folder), device="cuda" if cuda else "cpu", threads=threads) as ready:
        epoch, rows = ready.rows // batch, ready.dataset.packed.rows("train")
        if epoch == 0:
            value = f"{ready.rows} training photos, less than one batch"
            raise UserError(Fault("--archive", value, "value", allowed=f"{batch} or more"))
        images = Path(ready.config.paths.images).resolve()
        files = [(str(images / ready.dataset.packed.paths[row]), int(ready.dataset.packed.labels[row])) for row in rows]
        loaded: dict[int, Iterator[torch.Tensor]] = {}

        def batches(side: int) -> Iterator[torch.Tensor]:
            if name.startswith(OURS):
                yield from (batch.images for batch in ready.having(crop=side).batches())
            source = contenders.LOADERS[name].make(files, side, batch)
            while True:
                yield from (images for images, _ in source)

        def turn(side: int, seconds: float) -> Row:
            if side not in loaded:
                loaded.clear()
                loaded[side] = batches(side)
            began, count = time.perf_counter(), 0
            while count == 0 or time.perf_counter() - began < seconds:
                for tensor in islice(loaded[side], epoch):
                    assert (tensor.shape[1:], tensor.dtype) == ((3, side, side), torch.float32)
                    count += len(tensor)
            if cuda:
                torch.cuda.synchronize()
            return {"images": count, "seconds": time.perf_counter() - began}

        measuring.serve(turn)


# ---------------------------------------------------------------- the race


def taking_part(report: Report, device: str) -> list[str]:
    """The contenders that can run here. The report names the others, with the reason."""
    from benchmarks.harness.contenders import LOADERS, missing

    for name, loader in LOADERS.items():
        if reason := missing(loader.needs):
            report.leave_out(name, reason)
    installed = [name for name, loader in LOADERS.items() if not missing(loader.needs)]
    return [OURS, OURS_THREADS, *([OURS_GPU] if device == "cuda" else []), *installed]


def race(names: list[str], folder: Path, preset: Preset, report: Report) -> None:
    """Add a row for each contender and side after each of its turns; contenders take turns."""
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker("benchmarks.speed.loader", name, str(folder), str(preset.batch)))
            for name in names
        }
        for side in preset.sides:
            titles = {f"{name} {side}": name for name in names}
            todo = measuring.unfinished(report, titles, preset.turns)
            for title in todo:
                workers[titles[title]].ask(side=side, seconds=0.0)
            for turn, title in product(range(preset.turns), todo):
                row = report.rows.get(title, {"turns": 0, "each": []})
                if row["turns"] == turn:
                    answer = workers[titles[title]].ask(side=side, seconds=preset.seconds)
                    cpu, wall = (1e3 * answer[key] / answer["images"] for key in ("cpu_seconds", "seconds"))
                    each = [*row["each"], {"cpu_ms": cpu, "wall_ms": wall}]
                    report.add(title, {**measuring.medians(each), "turns": turn + 1, "each": each})


def prepare_once(folder: Path) -> Row:
    """Run `prepare`: milliseconds per image, with the start of the stage."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    workspace.run_stage(folder, "prepare")
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    images = len(split_table.kept_rows(folder / "data/split.csv"))
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_ms": 1e3 * cpu / images, "wall_ms": 1e3 * wall / images}


def main() -> None:
    options = measuring.parser(__doc__, "loader").parse_args()
    preset = PRESETS[measuring.preset(options)]
    with workspace.temporary_folder("loader") as base:
        photos = workspace.photos(options, base, preset.images, preset.side)
        report = Report("loader", options, **photos.facts, batch=preset.batch)
        names = taking_part(report, options.device)
        titles = [f"{name} {side}" for name in names for side in preset.sides]
        if report.missing([PREPARE]) or measuring.unfinished(report, titles, preset.turns):
            workspace.create(base / "copy", workspace.ONE_PROCESS, training(preset), photos.params)
            for stage in ("download", "split"):
                workspace.run_stage(base / "copy", stage)
            once = prepare_once(base / "copy")
            if report.missing([PREPARE]):
                report.add(PREPARE, once)
            race(names, base / "copy", preset, report)
        rows = report.rows
        report.conclude(
            prepare_cpu_ms=rows[PREPARE]["cpu_ms"],
            times_our_cpu={
                f"{name} {side}": rows[f"{name} {side}"]["cpu_ms"] / rows[f"{OURS} {side}"]["cpu_ms"]
                for side in preset.sides
                for name in names
                if not name.startswith(OURS)
            },
        )
