"""Images per second of `prepare`, and of decoding and resizing alone with libraries, on all cores.

    python -m benchmarks prepare --archive file:///…/flower_photos_mini.tgz

Ours uses Pillow and also writes, hashes and syncs the packed file; the others discard their images. `throughput` is
ours over each of them.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row, Worker
from pipeline.base import files, linux
from pipeline.config import params
from pipeline.dataset import split_table
from pipeline.stages import prepare

OURS, PILLOW, TORCHVISION = "ours", "Pillow", "torchvision"
CONTENDERS = (OURS, PILLOW, TORCHVISION)


@dataclass(frozen=True)
class Preset:
    images: int
    side: int  # of the drawn images
    packed_size: int
    turns: int


PRESETS = {"cpu": Preset(200, 320, 256, 5), "cuda": Preset(600, 320, 256, 5), "tiny": Preset(50, 48, 32, 1)}


def worker(name: str, folder: str) -> None:
    """The process of a contender. A turn is all images once."""
    os.chdir(folder)
    config, cores = params.load(), linux.usable_cores()
    images, split_csv = Path(config.paths.images), Path(config.paths.split)
    paths, size = [images / line.path for line in split_table.kept_rows(split_csv)], config.prepare.size

    def ours() -> None:
        prepare.run(config)

    def pillow() -> None:
        from PIL import Image

        def decode_and_resize(path: Path) -> None:
            with Image.open(path) as image:
                image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)

        in_threads(decode_and_resize)

    def torchvision() -> None:
        import torch
        from torchvision import io
        from torchvision.transforms.v2 import InterpolationMode, functional

        def decode_and_resize(path: Path) -> None:
            image = io.decode_image(io.read_file(str(path)), mode=io.ImageReadMode.RGB)
            functional.resize(image, [size, size], InterpolationMode.BICUBIC, antialias=True)

        torch.set_num_threads(1)
        in_threads(decode_and_resize)

    def in_threads(decode_and_resize: Callable[[Path], None]) -> None:
        with ThreadPoolExecutor(cores) as pool:
            for _ in pool.map(decode_and_resize, paths):
                pass

    if name == OURS:
        linux.keep_freed_memory()  # as a stage does
    work = {OURS: ours, PILLOW: pillow, TORCHVISION: torchvision}[name]

    def turn() -> Row:
        files.remove(Path(config.paths.packed))  # as DVC does before a stage
        began = time.perf_counter()
        work()
        return {"images": len(paths), "seconds": time.perf_counter() - began}

    measuring.serve(turn)


def main() -> None:
    options = measuring.parser(__doc__, "prepare").parse_args()
    preset = PRESETS[measuring.preset(options)]
    with workspace.temporary_folder("prepare") as base:
        photos = workspace.photos(options, base, preset.images, preset.side)
        report = Report("prepare", options, **photos.facts, packed_size=preset.packed_size)
        workspace.create(base / "copy", workspace.ONE_PROCESS, photos.params, {"prepare": {"size": preset.packed_size}})
        for stage in ("download", "split"):
            workspace.run_stage(base / "copy", stage)
        turns: dict[str, list[Row]] = {name: [] for name in CONTENDERS}
        with ExitStack() as stack:
            workers = {
                n: stack.enter_context(Worker("benchmarks.speed.prepare", n, str(base / "copy"))) for n in CONTENDERS
            }
            for contender in workers.values():
                contender.ask()
            for name, contender in list(workers.items()) * preset.turns:
                turn = contender.ask()
                images = turn["images"]
                cpu = 1e3 * turn["cpu_seconds"] / images
                turns[name].append({"images_per_s": images / turn["seconds"], "cpu_ms": cpu})
        for name in CONTENDERS:
            report.add(name, measuring.medians(turns[name]))
        rates = {name: row["images_per_s"] for name, row in report.rows.items()}
        report.conclude(throughput={name: rates[OURS] / rates[name] for name in CONTENDERS[1:]})
