"""The features of the packed images: the stage `features` writes them, `train` reads them."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.base import schema
from pipeline.base.errors import damaged

FILE = "features.npy"  # float32 [images, d]; row i belongs to image i of the packed ones


def read(folder: Path, images: int) -> NDArray[np.float32]:
    """The features [images, d]. Raises UserError if the file is missing, damaged, or has another number of images."""
    remedy = "perennial repro --force --single-item features; then perennial repro"
    with schema.reading(folder / FILE, remedy, ValueError):
        features: NDArray[np.float32] = np.load(folder / FILE, mmap_mode="r")
    if len(features) != images or not np.isfinite(features).all():
        raise damaged(folder / FILE, f"{len(features):,} feature vectors for {images:,} images, all finite", remedy)
    return features
