"""The features of the packed images: the stage `features` writes them, `train` reads them."""

from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.typing import NDArray

from pipeline.base import files, schema
from pipeline.base.errors import damaged

FILE = "features.npy"  # float32 [images, d]; row i belongs to image i of the packed ones


def write_none(folder: Path) -> None:
    """Write a note instead of features, for train.head: trained. DVC warns of an empty folder with every command."""
    with files.atomic_folder(folder) as temporary:
        files.write_text(temporary / "none.txt", "No features are asked for (train.head: trained).\n")
    print("features: none are asked for (train.head: trained)")


def read(folder: Path, images: int) -> NDArray[np.float32]:
    """The features [images, d]. Raises UserError if the file is missing, damaged, or has another number of images."""
    remedy = "perennial repro --force --single-item features; then perennial repro"
    with schema.reading(folder / FILE, remedy, EOFError, SyntaxError, TokenError):  # of numpy, for a header
        features: NDArray[np.float32] = np.load(folder / FILE, mmap_mode="r")
    if len(features) != images or not np.isfinite(features).all():
        raise damaged(folder / FILE, f"{len(features):,} feature vectors for {images:,} images, all finite", remedy)
    return features
