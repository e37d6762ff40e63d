"""Small data sets for tests: settings of the split, images of noise, what the split makes of a folder, decoding."""

import importlib.util
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pipeline.config.params import Fractions, Split
from pipeline.data import images, split_report
from pipeline.dataset.split_table import ImageRow
from pipeline.sources.originals import Originals
from pipeline.stages import split

Rows = list[ImageRow]
Counts = dict[str, Any]

HAS_HEIF = importlib.util.find_spec("pillow_heif") is not None  # the decoder of HEIC, which is optional
needs_heif = pytest.mark.skipif(not HAS_HEIF, reason="needs pillow-heif (make test)")


def settings(
    seed: int = 0, val: float = 0.1, test: float = 0.1, folds: int = 10, fold: int = 0, **changes: Any
) -> Split:
    """Settings of the split, as in the section `split` of the params."""
    others = {"phash_distance": 8, "min_side": 16, "max_pixels": 10**7, "max_unreadable": 20} | changes
    fractions = Fractions(train=1 - val - test, val=val, test=test)
    return Split(seed=seed, fractions=fractions, folds=folds, fold=fold, **others)


def do_split(folder: Path, workers: int = 2, **changes: Any) -> tuple[Rows, Counts]:
    """The rows and counts of a folder of images."""
    result = split.split(Originals(folder, {}), settings(**changes), workers)
    return result.rows, result.counts


def splits_by_path(rows: Rows) -> dict[str, str]:
    """Path → split of every row; empty for an excluded image."""
    return {row.path: row.split for row in rows}


def reasons(rows: Rows) -> dict[str, str]:
    """Path → reason of every excluded image."""
    return {row.path: row.reason for row in rows if row.reason}


def left_out(rows: Rows) -> dict[str, int]:
    """Reason → number of images, as in excluded.csv."""
    by_reason = split_report.by_reason([(reason, path) for path, reason in reasons(rows).items()])
    return {reason: len(paths) for reason, paths in by_reason.items()}


def noise_image(seed: int, side: int = 24) -> Image.Image:
    """Coarse noise: images of two seeds are no near duplicates."""
    noise = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    return Image.fromarray(noise).resize((side, side), Image.Resampling.NEAREST)


def put(path: Path, seed: int, side: int = 24) -> None:
    """Save noise as a PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise_image(seed, side).save(path, "PNG")


def two_classes(folder: Path) -> Path:
    """Fill a folder with two classes of ten images."""
    for label, first in (("cat", 0), ("dog", 100)):
        for seed in range(first, first + 10):
            put(folder / label / f"{seed}.png", seed)
    return folder


def near_by_brute_force(hashes: NDArray[np.uint64], threshold: int) -> set[tuple[int, int]]:
    """All pairs of row numbers whose hashes are at most `threshold` bits apart."""
    left, right = np.triu_indices(len(hashes), 1)
    near = np.bitwise_count(hashes[left] ^ hashes[right]) <= threshold
    return set(zip(left[near].tolist(), right[near].tolist(), strict=True))


def decode(path: Path, max_pixels: int = images.NO_LIMIT, draft: int = 0) -> images.RGB:
    """The decoded image of a file."""
    with images.decode(path, max_pixels, draft) as result:
        return result.image


def png_with_size(width: int, height: int, content: bytes = b"") -> bytes:
    """A PNG with this size in its header, and with this content as compressed pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    data = struct.pack(">I", len(content)) + b"IDAT" + content + struct.pack(">I", zlib.crc32(b"IDAT" + content))
    return b"\x89PNG\r\n\x1a\n" + chunk + data
