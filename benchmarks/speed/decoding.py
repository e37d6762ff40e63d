"""The work of `split` and of `prepare` for every image, in threads as in the stages, and in processes.

    python -m benchmarks decoding --archive file:///…/flower_photos_mini.tgz

Threads share Python's lock, processes do not. A row is a number of workers. `gain` is the images per second of
processes over those of as many threads. Processes are forked from one that has imported what they need, and their start
is part of the time. Their results come back through pipes. Nothing is written.
"""

import multiprocessing
import os
import time
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row, Worker
from benchmarks.speed.prepare import PRESETS
from pipeline.base import linux, threads
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.data import duplicates, images
from pipeline.data.images import ImageInfo
from pipeline.dataset import split_table

STAGES, WAYS, MODULE = ("split", "prepare"), ("threads", "processes"), "benchmarks.speed.decoding"
CHUNK = 4  # images that a process gets at a time


def of_split(path: Path, config: Params) -> ImageInfo:
    """What `split` does with an image."""
    return images.inspect_image(path, config.split.min_side, config.split.max_pixels, duplicates.perceptual_hash)


def of_prepare(path: Path, config: Params) -> NDArray[np.uint8]:
    """What `prepare` does with an image."""
    return images.resize_to_square(path, config.prepare.size, fit=config.prepare.fit)


WORK = {"split": of_split, "prepare": of_prepare}


def worker(stage: str, way: str, count: str, folder: str) -> None:
    """The process of a contender. A turn is all images once."""
    os.chdir(folder)
    config = params.load()
    paths = [Path(config.paths.images, line.path) for line in split_table.kept_rows(Path(config.paths.split))]
    work = partial(WORK[stage], config=config)
    linux.keep_freed_memory()  # as a stage does
    linux.share_freed_memory()
    context = multiprocessing.get_context("fork")

    def turn() -> Row:
        began = time.perf_counter()
        if way == "threads":
            done = sum(1 for _ in threads.ordered_map(work, paths, int(count)))
        else:
            with context.Pool(int(count)) as pool:
                done = sum(1 for _ in pool.imap(work, paths, CHUNK))
                pool.close()
                pool.join()  # else the CPU time of its processes would be unknown
        return {"images_per_s": done / (time.perf_counter() - began), "images": done}

    measuring.serve(turn)


def counts(cores: int) -> list[int]:
    """Numbers of workers: the powers of two below the number of cores, and that number."""
    return [count for count in (1, 2, 4, 8, 16, 32, 64) if count < cores] + [cores]


def main() -> None:
    options = measuring.parser(__doc__, "decoding").parse_args()
    preset = PRESETS[measuring.preset(options)]
    with workspace.temporary_folder("decoding") as base:
        photos = workspace.photos(options, base, preset.images, preset.side)
        report = Report("decoding", options, **photos.facts, packed_size=preset.packed_size)
        folder = base / "copy"
        workspace.create(folder, workspace.ONE_PROCESS, photos.params, {"prepare": {"size": preset.packed_size}})
        for stage in ("download", "split"):
            workspace.run_stage(folder, stage)
        for stage, count in product(STAGES, counts(linux.usable_cores())):
            turns: dict[str, list[Row]] = {way: [] for way in WAYS}
            with ExitStack() as stack:
                workers = {
                    way: stack.enter_context(Worker(MODULE, stage, way, f"{count}", f"{folder}")) for way in WAYS
                }
                for number, way in product(range(preset.turns + 1), WAYS):
                    turn = workers[way].ask()
                    cpu_ms = 1e3 * turn["cpu_seconds"] / turn["images"]
                    if number:  # the first one imports, and fills the disk's cache
                        turns[way].append({"images_per_s": turn["images_per_s"], "cpu_ms": cpu_ms})
            ours = {way: measuring.medians(turns[way]) for way in WAYS}
            figures = {f"{way}_{name}": value for way, row in ours.items() for name, value in row.items()}
            gain = figures["processes_images_per_s"] / figures["threads_images_per_s"]
            report.add(f"{stage}, {count} workers", {**figures, "gain": gain})
        report.conclude()
