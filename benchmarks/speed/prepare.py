"""8. Packing the images beside plain decoding and resizing of the same files by libraries, on all cores.

    python -m benchmarks prepare --archive file:///…/flower_photos_mini.tgz

Ours, with Pillow, writes, hashes and syncs the packed file; the others throw their images away. `throughput` is ours
over each of them.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row, Worker
from pipeline import prepare
from pipeline.base import files, linux
from pipeline.config import params
from pipeline.data import split_table

OURS, PILLOW, TORCHVISION = "ours", "Pillow", "torchvision"
CONTENDERS = (OURS, PILLOW, TORCHVISION)


@dataclass(frozen=True)
class Form:
    images: int
    side: int  # of the drawn images
    packed_size: int
    turns: int


FORMS = {"cpu": Form(200, 320, 256, 5), "cuda": Form(600, 320, 256, 5), "tiny": Form(50, 48, 32, 1)}


def worker(name: str, folder: Path) -> None:
    """Be the process of a contender: a turn is all images once."""
    os.chdir(folder)
    config, cores = params.load(), measuring.cores()
    images, split_csv = Path(config.paths.images), Path(config.paths.split)
    paths, size = [images / line["path"] for line in split_table.kept_rows(split_csv)], config.prepare.size

    def ours() -> None:
        prepare.run(config)

    def pillow() -> None:
        from PIL import Image

        def squeeze(path: Path) -> None:
            with Image.open(path) as image:
                image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)

        in_threads(squeeze)

    def torchvision() -> None:
        import torch
        from torchvision import io
        from torchvision.transforms.v2 import InterpolationMode, functional

        def squeeze(path: Path) -> None:
            image = io.decode_image(io.read_file(str(path)), mode=io.ImageReadMode.RGB)
            functional.resize(image, [size, size], InterpolationMode.BICUBIC, antialias=True)

        torch.set_num_threads(1)
        in_threads(squeeze)

    def in_threads(squeeze: Callable[[Path], None]) -> None:
        with ThreadPoolExecutor(cores) as pool:
            for _ in pool.map(squeeze, paths):
                pass

    if name == OURS:
        linux.keep_freed_memory()  # as stage.main does
    work = {OURS: ours, PILLOW: pillow, TORCHVISION: torchvision}[name]

    def turn() -> Row:
        files.remove(Path(config.paths.packed))  # as DVC does before a stage
        began = time.perf_counter()
        work()
        return {"images": len(paths), "seconds": time.perf_counter() - began}

    measuring.serve(turn)


def main() -> int:
    options = measuring.parser(__doc__, "prepare").parse_args()
    form = FORMS[measuring.form(options)]
    with measuring.refusals("prepare"), tempfile.TemporaryDirectory(prefix="prepare-") as temporary:
        base = Path(temporary).resolve()
        photos = workspace.photos(options, base, form.images, form.side)
        report = Report("prepare", options, photos=photos.words, sha256=photos.sha256, packed_size=form.packed_size)
        workspace.workplace(
            base / "copy", workspace.ONE_PROCESS, photos.params, {"prepare": {"size": form.packed_size}}
        )
        for stage in ("download", "split"):
            workspace.must(base / "copy", sys.executable, "-m", f"pipeline.{stage}")
        turns: dict[str, list[Row]] = {name: [] for name in CONTENDERS}
        with ExitStack() as stack:
            workers = {
                n: stack.enter_context(Worker("benchmarks.speed.prepare", n, str(base / "copy"))) for n in CONTENDERS
            }
            for contender in workers.values():
                contender.ask()
            for name, contender in list(workers.items()) * form.turns:
                turn = contender.ask()
                images = turn["images"]
                cpu = 1e3 * turn["cpu_seconds"] / images
                turns[name].append({"images_per_s": images / turn["seconds"], "cpu_ms": cpu})
        for name in CONTENDERS:
            report.add(name, measuring.medians(turns[name]))
        rates = {name: row["images_per_s"] for name, row in report.rows.items()}
        report.conclude(throughput={name: rates[OURS] / rates[name] for name in CONTENDERS[1:]})
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(main())
