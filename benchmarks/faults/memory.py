"""10. Peak memory of split, prepare and predict on a folder of hostile images, over the documented bound.

    python -m benchmarks memory

200 files, a sixth of them at the limit of split.max_pixels (100 megapixels, also 32 pixels wide and 3,125,000 high):
JPEG, progressive and CMYK; PNG, WebP, TIFF and GIF; 16-bit, palettes, transparency, rotated by EXIF; truncated files;
headers that state 3,600 megapixels; comments that unpack to 60 MB. Eight threads. `share` is the peak over the bound in
docs/performance.md; it must be below 1.
"""

import io
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report
from pipeline.base import files

BOUNDS_MB = {"split": 2600, "prepare": 2900, "predict": 3200}  # docs/performance.md has the reason
LABELS = ("cat", "dog")
THREADS = 8


@dataclass(frozen=True)
class Preset:
    side: int  # of a square image with the maximum number of pixels
    files: int
    packed_size: int


PRESETS = {"cpu": Preset(10_000, 200, 256), "cuda": Preset(10_000, 200, 256), "tiny": Preset(200, 32, 32)}
Encoded = Callable[[np.random.Generator, int], bytes]


def noise(draw: np.random.Generator, width: int, height: int) -> Image.Image:
    """An image of coarse noise: no near duplicate of another one, and quick to encode."""
    noise = draw.integers(0, 256, (8, 8, 3), np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.NEAREST)


def encoded(mode: str, kind: str, shape: tuple[float, float] = (1, 1), turned: bool = False, **options: Any) -> Encoded:
    """An encoder for images of a mode and a file format; `shape` is width and height as multiples of the side."""

    def make(draw: np.random.Generator, side: int) -> bytes:
        image = noise(draw, max(1, round(side * shape[0])), max(1, round(side * shape[1])))
        if mode == "I;16":
            image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
        elif mode == "RGBA":
            image.putalpha(image.convert("L"))
        elif mode != "RGB":
            image = image.convert(mode)
        exif = Image.Exif()
        exif[0x0112] = 6
        content = io.BytesIO()
        image.save(content, kind, **options, **({"exif": exif} if turned else {}))
        return content.getvalue()

    return make


def cut(encode: Encoded) -> Encoded:
    """Files that end in the middle."""

    def make(draw: np.random.Generator, side: int) -> bytes:
        content = encode(draw, side)
        return content[: len(content) // 2]

    return make


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def bomb(width: int, height: int, before: bytes = b"") -> Encoded:
    """PNGs of a few bytes whose header states this many pixels; `before` are more chunks."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    content = b"\x89PNG\r\n\x1a\n" + header + before + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return lambda draw, side: content


COMMENT = chunk(b"iTXt", b"k\0\1\0\0\0" + zlib.compress("\U0001f600".encode() + b"x" * 60_000_000, 9))
LINE = (32 / 10_000, 312.5)  # 32 pixels wide, 3,125,000 high, for a side of 10,000
KINDS: dict[str, Encoded] = {
    "plain.jpg": encoded("RGB", "JPEG"),
    "progressive.jpg": encoded("RGB", "JPEG", progressive=True, subsampling=0, turned=True),
    "inks.jpg": encoded("CMYK", "JPEG", progressive=True),
    "plain.png": encoded("RGB", "PNG", compress_level=1),
    "clear.png": encoded("RGBA", "PNG", compress_level=1, turned=True),
    "palette.png": encoded("P", "PNG", compress_level=1, transparency=0),
    "grey16.png": encoded("I;16", "PNG", compress_level=1),
    "high.png": encoded("RGB", "PNG", LINE, compress_level=1),
    "wide.png": encoded("RGB", "PNG", LINE[::-1], compress_level=1),
    "strip.tiff": encoded("RGBA", "TIFF", compression="tiff_lzw", tiffinfo={278: 10_000}),
    "plain.tiff": encoded("RGB", "TIFF"),
    "inks.tiff": encoded("CMYK", "TIFF", compression="tiff_lzw"),
    "palette.gif": encoded("P", "GIF"),
    "plain.webp": encoded("RGB", "WEBP", method=0, quality=10),
    "clear.webp": encoded("RGBA", "WEBP", method=0, lossless=True, quality=0),
    "cut.png": cut(encoded("RGB", "PNG", compress_level=1)),
    "cut.jpg": cut(encoded("RGB", "JPEG", progressive=True)),
    "plain.bmp": encoded("L", "BMP"),
}
SMALL: dict[str, Encoded] = {  # files of few bytes
    "promise.png": bomb(60_000, 60_000),
    "comment.png": bomb(100, 100, COMMENT),
    "words.jpg": lambda draw, side: b"words",
    "small.png": encoded("RGB", "PNG", (0.05, 0.05)),
}


def listed(count: int) -> Iterator[tuple[str, Encoded, bool]]:
    """The name of each file, its encoder, and whether it is large: a sixth of them are."""
    large, small = list(KINDS.items()), list(SMALL.items())
    for number in range(count):
        chosen, is_large = (large, True) if number % 6 == 0 else (small, False)
        name, make = chosen[(number // 6 if is_large else number) % len(chosen)]
        yield f"{LABELS[number % 2]}/{number:03} {name}", make, is_large


def draw(folder: Path, preset: Preset) -> tuple[int, int]:
    """Fill the class folders; the number of files, and the number of large ones."""
    for label in LABELS:
        (folder / label).mkdir(parents=True)
    jobs = list(listed(preset.files))

    def write(job: tuple[int, tuple[str, Encoded, bool]]) -> None:
        number, (name, make, _) = job
        (folder / name).write_bytes(make(np.random.default_rng(number), preset.side))

    with ThreadPoolExecutor(measuring.cores()) as pool:
        list(pool.map(write, enumerate(jobs)))
    return len(jobs), sum(is_large for _, _, is_large in jobs)


def put_model(models: Path, packed_size: int) -> None:
    """Write an untrained model, for predict."""
    from pipeline.loader import augment
    from pipeline.models import exported, network
    from pipeline.models.description import Description, View

    net = network.build("shufflenet_v2_x0_5", len(LABELS), seed=0)
    view = View(packed_size=packed_size, resize=packed_size, crop=packed_size)
    description = Description("shufflenet_v2_x0_5", LABELS, view, augment.MEAN, augment.STD, export="last", epoch=1)
    exported.save(models, net.state_dict(), description)


def commands(images: Path) -> dict[str, tuple[str, ...]]:
    """The command of each stage. predict must end with 1, because some files are no images."""
    predict = f"{sys.executable} -m pipeline.predict {images} >predicted.txt 2>refused.txt; test $? -eq 1"
    return {
        "split": (sys.executable, "-m", "pipeline.split"),
        "prepare": (sys.executable, "-m", "pipeline.prepare"),
        "predict": ("sh", "-c", predict),
    }


def main() -> int:
    options = measuring.parser(__doc__, "memory").parse_args()
    preset = PRESETS[measuring.preset(options)]
    with tempfile.TemporaryDirectory(prefix="memory-") as temporary:
        base = Path(temporary).resolve()
        changes = {
            "split": {"max_pixels": preset.side**2, "min_side": 8, "max_unreadable": preset.files},
            "prepare": {"size": preset.packed_size},
            "run": {"workers": THREADS},
        }
        workspace.create(base / "copy", workspace.ONE_PROCESS, changes)
        images = Path("data/images")
        count, large = draw(base / "copy" / images, preset)
        report = Report("memory", options, photos="hostile images", files=count, large=large, threads=THREADS)
        put_model(base / "copy/models", preset.packed_size)
        for stage, command in commands(images).items():
            done = measuring.run_watched(command, base / "copy", workspace.environment(base))
            lines = files.read_csv(base / "copy/data/split.csv")
            kept = sum(not line["reason"] for line in lines)
            row = {"kept": kept, "excluded": len(lines) - kept, "seconds": done.seconds}
            report.add(stage, {**row, "peak_mb": done.peak_mb(), "bound_mb": BOUNDS_MB[stage]})
        report.conclude(share={name: row["peak_mb"] / row["bound_mb"] for name, row in report.rows.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
