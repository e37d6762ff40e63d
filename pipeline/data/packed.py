"""The packed images: `prepare` writes them, `train` and `evaluate` read them.

A folder with `images.npy`, uint8 [N, S, S, 3], and `digest.json` (`sha256` of images.npy, `images` N, `size` S, and
`fit`, if it is not `none`).
Image i belongs to row i of the kept rows of split.csv, which has its path, class and split.
"""

import hashlib
import io
import math
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.base import files, schema
from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Fit, Prepare
from pipeline.data import split_table, squares
from pipeline.versioning import integrity, programs

IMAGES, DIGEST = "images.npy", "digest.json"
LARGE = 4e9  # bytes; before more are read, a message is printed
MEMORY = programs.TEMPORARY / "packed.json"  # the digest of images.npy, by its inode, size and times


@dataclass(frozen=True)
class Digest:
    """The content of digest.json."""

    __pydantic_config__ = schema.STRICT

    sha256: schema.Sha256  # of images.npy
    images: schema.Count
    size: schema.Side
    fit: Fit = "none"  # the prepare.fit of these images


@dataclass(frozen=True)
class Packed:
    """The images of a data set and their rows of split.csv; element i of each field belongs to image i."""

    images: NDArray[np.uint8]  # [N, S, S, 3], a read-only memory map
    paths: tuple[str, ...]  # relative to paths.images
    classes: tuple[str, ...]  # [K], sorted
    labels: NDArray[np.int64]  # [N], index into `classes`
    sizes: NDArray[np.int32]  # [N, 2]: width and height that a square stands for, see `squares.proportions`
    splits: NDArray[np.str_]  # [N]: train, val or test
    digest: str  # SHA-256 of images.npy
    fit: Fit = "none"

    def rows(self, split: str) -> NDArray[np.int64]:
        """The indices of the images of one split, ascending."""
        return np.flatnonzero(self.splits == split)

    def counts(self, split: str) -> dict[str, int]:
        """The number of images of one split in every class, in the order of the classes."""
        counts = np.bincount(self.labels[self.rows(split)], minlength=len(self.classes))
        return dict(zip(self.classes, counts.tolist(), strict=True))


def load(folder: Path, split_csv: Path) -> Packed:
    """Open a packed folder. Raises UserError if it is damaged, or was not made from this split.csv."""
    digest = schema.json_of(folder / DIGEST, Digest, schema.checkout(folder))
    images, rows = _memory_map(folder, digest), split_table.kept_rows(split_csv)
    if digest.images != len(rows):
        reason, remedy = f"{split_csv} keeps {len(rows)}", "run the prepare stage again (perennial repro does)"
        raise UserError(Fault(str(folder / IMAGES), f"{digest.images} images", "differs", reason, remedy=remedy))
    classes = tuple(sorted({row["class"] for row in rows}))
    number = {name: index for index, name in enumerate(classes)}
    return Packed(
        images=images,
        paths=tuple(row["path"] for row in rows),
        classes=classes,
        labels=np.array([number[row["class"]] for row in rows], np.int64),
        sizes=np.array(
            [squares.proportions(digest.fit, (int(row["width"]), int(row["height"]))) for row in rows], np.int32
        ),
        splits=np.array([row["split"] for row in rows]),
        digest=digest.sha256,
        fit=digest.fit,
    )


def _header(images: int, size: int) -> bytes:
    """The first bytes of images.npy, before the pixels."""
    header = io.BytesIO()
    layout = {"descr": "|u1", "fortran_order": False, "shape": (images, size, size, 3)}
    np.lib.format.write_array_header_1_0(header, layout)
    return header.getvalue()


def _memory_map(folder: Path, digest: Digest) -> NDArray[np.uint8]:
    """images.npy as a memory map. Raises UserError if it does not have the header and length that digest.json says.

    The header is compared and not parsed: a damaged one could describe Python objects or a huge array.
    """
    path, header = folder / IMAGES, _header(digest.images, digest.size)
    shape = (digest.images, digest.size, digest.size, 3)
    with schema.reading(path, schema.checkout(folder)), path.open("rb") as file:
        if file.read(len(header)) != header:
            raise ValueError(f"it does not begin like an array of uint8 {list(shape)}, which {DIGEST} describes")
        actual, expected = os.fstat(file.fileno()).st_size, len(header) + math.prod(shape)
        if actual != expected:
            raise ValueError(f"{actual:,} bytes, not {expected:,}")
        return np.memmap(file, np.uint8, "r", len(header), shape)


def check_pixels(data: Packed, folder: Path) -> None:
    """Raise UserError if images.npy of the packed `folder` has another SHA-256 than its digest.json says.

    The file is read once, and again after a change of its time or size. It is not read if this start of the program has
    compared it with dvc.lock.
    """
    path = folder / IMAGES
    if integrity.is_compared(folder):
        return
    if data.images.nbytes > LARGE:
        print(
            f"{path}: comparing {data.images.nbytes / 1e9:.0f} GB with {folder / DIGEST}, if it has changed since the "
            f"last time; if other processes do not wait so long, raise run.timeout_seconds",
            file=sys.stderr,
        )
    if (actual := integrity.sha256_once(path, MEMORY)) != data.digest:
        reason = f"{folder / DIGEST} says {data.digest}"
        raise UserError(Fault(str(path), f"SHA-256 {actual}", "differs", reason, remedy=schema.checkout(folder)))


def check_settings(data: Packed, folder: Path, settings: Prepare) -> None:
    """Raise UserError if the images of the packed `folder` have another `prepare.size` or `prepare.fit`."""
    pairs = {"size": (data.images.shape[1], settings.size), "fit": (data.fit, settings.fit)}
    for key, (actual, expected) in pairs.items():
        if actual != expected:
            reason = f"the packed images in {folder / IMAGES} have {actual}"
            remedy = "or pack again (perennial repro --force --single-item prepare); then perennial repro"
            raise UserError(Fault(f"prepare.{key}", str(expected), "differs", reason, str(actual), remedy))


def write(folder: Path, images: Iterable[NDArray[np.uint8]], count: int, size: int, fit: Fit = "none") -> None:
    """Write `count` images, uint8 [size, size, 3] each, and their digest. One image is in memory at a time.

    They are not written through a memory map: there a full disk ends the process (SIGBUS) instead of raising OSError.
    Raises ValueError for another number or another shape of images.
    """
    header = _header(count, size)
    sha256 = hashlib.sha256(header)
    images_written = 0
    with (folder / IMAGES).open("wb") as file:
        file.write(header)
        for image in images:
            if image.shape != (size, size, 3) or image.dtype != np.uint8:
                raise ValueError(f"image {images_written}: {image.dtype} {image.shape}, not uint8 {(size, size, 3)}")
            content = np.ascontiguousarray(image).data
            file.write(content)
            sha256.update(content)
            images_written += 1
        file.flush()
        os.fsync(file.fileno())
    if images_written != count:
        raise ValueError(f"{images_written} images, not {count}")
    digest = {"sha256": sha256.hexdigest(), "images": count, "size": size}
    # Without the key for `none`: such a folder has the bytes that earlier versions wrote.
    files.write_json(folder / DIGEST, digest if fit == "none" else digest | {"fit": fit})
