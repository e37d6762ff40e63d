"""The features of the packed images: the stage `features` writes them, `train` reads them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.typing import NDArray

from pipeline.base import files, schema
from pipeline.base.errors import damaged

FILE = "features.npy"  # float32 [images, d]; row i belongs to image i of the packed ones
HEADER_ERRORS = (EOFError, SyntaxError, TokenError)  # of numpy
IMAGE_BYTES = 40  # which name an image

Features = dict[bytes, NDArray[np.float32]]  # the SHA-256 of an image's pixels, and its width and height → [d]


def write_none(folder: Path) -> None:
    """Write a note instead of features, for train.head: trained. DVC warns of an empty folder with every command."""
    with files.atomic_folder(folder) as temporary:
        files.write_text(temporary / "none.txt", "No features are asked for (train.head: trained).\n")
    print("features: none are asked for (train.head: trained)")


def read(folder: Path, images: int) -> NDArray[np.float32]:
    """The features [images, d]. Raises UserError if the file is missing, damaged, or has another number of images."""
    remedy = "perennial repro --force --single-item features; then perennial repro"
    with schema.reading(folder / FILE, remedy, *HEADER_ERRORS):
        features: NDArray[np.float32] = np.load(folder / FILE, mmap_mode="r")
    if len(features) != images or not np.isfinite(features).all():
        raise damaged(folder / FILE, f"{len(features):,} feature vectors for {images:,} images, all finite", remedy)
    return features


def keep(folder: Path, images: Sequence[bytes], features: NDArray[np.float32]) -> Path:
    """Keep the features [n, d] of these images in a file of the folder. Its name is the SHA-256 of its rows."""
    names = np.frombuffer(b"".join(images), np.uint8).reshape(len(images), IMAGE_BYTES)
    rows = np.concatenate([names, np.ascontiguousarray(features).view(np.uint8)], axis=1)
    path = folder / f"{hashlib.sha256(rows.data).hexdigest()}.npy"
    with files.atomic_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, rows)
    return path


def known(folder: Path) -> Features:
    """The features in the files of `keep`. Raises UserError if one is damaged."""
    result: Features = {}
    for path in folder.glob("*.npy"):
        with schema.reading(path, f"rm -r {folder}, then perennial repro", *HEADER_ERRORS):
            rows = np.load(path)
            if (actual := hashlib.sha256(rows.data).hexdigest()) != path.stem:
                raise ValueError(f"SHA-256 {actual}")
            result |= {row[:IMAGE_BYTES].tobytes(): row[IMAGE_BYTES:].view(np.float32) for row in rows}
    return result
