"""Split, prepare and one epoch of 10,000 to 1,000,000 images: seconds, CPU seconds and memory.

    python -m benchmarks scale

The images are small and cheap to draw, because the number of images is what grows here. `peak_mb` is the sum of the
peaks of the processes, with what they map of files. A limit of the memory (a cgroup, a container) is in the report.
Near duplicates are not grouped: many images of noise are alike by chance.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row
from pipeline.base import linux

CLASSES = tuple(f"class-{number}" for number in range(10))
A_FOLDER = 1000  # images
GRID = 4  # pixels of the noise that is enlarged
SIDE = 32


@dataclass(frozen=True)
class Preset:
    sizes: tuple[int, ...]  # images
    train: dict[str, Any]


SMALL = {"model": "shufflenet_v2_x0_5", "crop": SIDE, "eval_crop": SIDE, "eval_resize": SIDE, "epochs": 1}
PRESETS = {
    "cuda": Preset((10_000, 100_000, 1_000_000), {**SMALL, "batch_size": 1024, "precision": "bf16"}),
    "cpu": Preset((10_000, 100_000, 1_000_000), {**SMALL, "batch_size": 256, "threads": 2}),
    "tiny": Preset((60, 120), {**SMALL, "batch_size": 16}),
}


def draw(folder: Path, first: int, end: int) -> None:
    """Write the images with the numbers from `first` to before `end`, as JPEG, in class folders."""
    noise = np.random.default_rng(first)
    for number in range(first, end):
        name = CLASSES[number % len(CLASSES)]
        grid = Image.fromarray(noise.integers(0, 256, (GRID, GRID, 3), np.uint8))
        path = folder / name / f"{number // A_FOLDER:04}" / f"{number:07}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        grid.resize((SIDE, SIDE), Image.Resampling.BILINEAR).save(path, quality=90)


def make_workspace(folder: Path, images: int, preset: Preset, device: str) -> None:
    """A copy of the project with so many images, ready for `split`."""
    train = {"train": {"device": device, "warmup_epochs": 0, **preset.train}, "split": {"phash_distance": 0}}
    workspace.create(folder, workspace.ONE_PROCESS, train, {"prepare": {"size": SIDE}})
    (folder / "data/weights").mkdir(parents=True)
    with ThreadPoolExecutor(linux.usable_cores()) as pool:
        starts = range(0, images, A_FOLDER)
        list(pool.map(lambda first: draw(folder / "data/images", first, min(first + A_FOLDER, images)), starts))


def run(folder: Path, stage: str, images: int) -> Row:
    """Run a stage: its time, its CPU time, and the peak of its memory."""
    before = measuring.cpu_seconds(os.getpid())
    command = (sys.executable, "-m", "pipeline", stage)
    done = measuring.run_watched(command, folder, workspace.environment(folder.parent))
    cpu = measuring.cpu_seconds(os.getpid()) - before
    return {"seconds": done.seconds, "images_per_s": images / done.seconds, "cpu_s": cpu, "peak_mb": done.peak_mb()}


def main() -> None:
    options = measuring.parser(__doc__, "scale", photos=False).parse_args()
    preset = PRESETS[measuring.preset(options)]
    limit = min((limit / 1e6 for limit, _ in linux.memory_limits()), default=None)
    report = Report("scale", options, side=SIDE, memory_limit_mb=limit, **preset.train)
    for images in preset.sizes:
        with workspace.temporary_folder("scale") as base:
            make_workspace(base / "copy", images, preset, options.device)
            for stage in ("split", "prepare", "train"):
                report.add(f"{stage} {images:,}", run(base / "copy", stage, images))
    stages = {stage: [row for name, row in report.rows.items() if name.startswith(stage)] for stage in workspace.STAGES}
    report.conclude(peak_mb={stage: max(row["peak_mb"] for row in rows) for stage, rows in stages.items() if rows})
