"""The packed images: `prepare` writes them, `train` and `evaluate` read them.

A folder with
    images-00000.bin, …     shards: the pixels, uint8 [n, S, S, 3] each, without a header; see `shard_images`
    images.sha256           the SHA-256 of each image's pixels, 32 bytes each
    digest.json             `sha256` of images.sha256, `images` N, `size` S, and `fit`, if it is not `none`
Image i belongs to row i of kept.csv; split.csv has its class and split, see `split_table.packed_rows`. A changed image
changes its shard alone. DVC has a hash for each shard, so it sends and fetches that one.
"""

import hashlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.base import files, linux, schema
from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Fit, Prepare
from pipeline.dataset import split_table, squares

HASHES, DIGEST = "images.sha256", "digest.json"
HASH_BYTES = hashlib.sha256().digest_size
SHARD_BYTES = 2**26
# Shards are mapped one after the other, as one array. So each has whole pages: the largest ones of Linux, on arm64.
PAGE = 2**16


@dataclass(frozen=True)
class Digest:
    """The content of digest.json."""

    __pydantic_config__ = schema.STRICT

    sha256: schema.Sha256  # of images.sha256
    images: schema.Count
    size: schema.Side
    fit: Fit = "none"  # the prepare.fit of these images

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of all images: [N, S, S, 3]."""
        return self.images, self.size, self.size, 3

    @property
    def image_bytes(self) -> int:
        """The bytes of an image."""
        return 3 * self.size**2

    def shards(self) -> dict[str, int]:
        """The files with the pixels, in order, and the number of images in each."""
        most = shard_images(self.size)
        return {
            f"images-{number:05}.bin": min(most, self.images - start)
            for number, start in enumerate(range(0, self.images, most))
        }


def shard_images(size: int) -> int:
    """The number of images in a shard: whole pages, and SHARD_BYTES at most, if that is possible.

    It is for each `size` that is a multiple of 64. With an odd one a shard has 65,536 images.
    """
    at_a_time = PAGE // math.gcd(PAGE, 3 * size**2)
    return max(1, SHARD_BYTES // (3 * size**2 * at_a_time)) * at_a_time


@dataclass(frozen=True)
class Packed:
    """The images of a data set and their rows of split.csv; element i of each field belongs to image i."""

    folder: Path
    content: Digest
    paths: tuple[str, ...]  # relative to paths.images
    classes: tuple[str, ...]  # [K], sorted
    labels: NDArray[np.int64]  # [N], index into `classes`; -1 for an image of a class that is left out
    sizes: NDArray[np.int32]  # [N, 2]: width and height that a square stands for, see `squares.proportions`
    splits: NDArray[np.str_]  # [N]: train, val or test; empty for an image that split.csv does not use

    @property
    def size(self) -> int:
        """The side of the squares, in pixels."""
        return self.content.size

    @property
    def fit(self) -> Fit:
        """The prepare.fit of the images."""
        return self.content.fit

    @property
    def digest(self) -> str:
        """What identifies the images: the SHA-256 of their hashes."""
        return self.content.sha256

    @cached_property
    def images(self) -> NDArray[np.uint8]:
        """The images [N, S, S, 3], read-only, mapped from the shards. Raises UserError if one has another length."""
        shards = {self.folder / name: count for name, count in self.content.shards().items()}
        for path, count in shards.items():
            expected = count * self.content.image_bytes
            with schema.reading(path, schema.checkout(self.folder)), path.open("rb") as file:
                actual = os.fstat(file.fileno()).st_size
                if actual != expected:
                    raise ValueError(f"{actual:,} bytes, not {expected:,}")
        return linux.map_files(list(shards)).reshape(self.content.shape)

    @cached_property
    def hashes(self) -> NDArray[np.uint8]:
        """The SHA-256 of the pixels of each image, uint8 [N, 32]. Raises UserError if images.sha256 is damaged."""
        path = self.folder / HASHES
        with schema.reading(path, schema.checkout(self.folder)):
            return hashes_of(path.read_bytes(), self.content)

    def rows(self, split: str) -> NDArray[np.int64]:
        """The indices of the images of one split, ascending."""
        return np.flatnonzero(self.splits == split)

    def counts(self, split: str) -> dict[str, int]:
        """The number of images of one split in every class, in the order of the classes."""
        counts = np.bincount(self.labels[self.rows(split)], minlength=len(self.classes))
        return dict(zip(self.classes, counts.tolist(), strict=True))


def load(folder: Path, split_csv: Path) -> Packed:
    """Open a packed folder. Raises UserError if it is damaged, or was not made from this split.csv.

    Its pixels are mapped when they are first used.
    """
    digest = schema.json_of(folder / DIGEST, Digest, schema.checkout(folder))
    rows = split_table.packed_rows(split_csv)
    if digest.images != len(rows):
        reason, remedy = f"{split_csv} has {len(rows)}", "run the prepare stage again (perennial repro does)"
        raise UserError(Fault(str(folder / DIGEST), f"{digest.images} images", "differs", reason, remedy=remedy))
    classes = tuple(sorted({row.label for row in rows if not row.reason}))
    number = {name: index for index, name in enumerate(classes)}
    return Packed(
        folder=folder,
        content=digest,
        paths=tuple(row.path for row in rows),
        classes=classes,
        labels=np.array([number.get(row.label, -1) for row in rows], np.int64),
        sizes=np.array([squares.proportions(digest.fit, (row.width, row.height)) for row in rows], np.int32),
        splits=np.array([row.split for row in rows]),
    )


def hashes_of(content: bytes, digest: Digest) -> NDArray[np.uint8]:
    """The SHA-256 of each image, uint8 [N, 32], from the bytes of images.sha256.

    Raises ValueError if they are not those that digest.json describes.
    """
    if (actual := hashlib.sha256(content).hexdigest()) != digest.sha256:
        raise ValueError(f"SHA-256 {actual}, not {digest.sha256}, which {DIGEST} says")
    if len(content) != HASH_BYTES * digest.images:
        raise ValueError(f"{len(content):,} bytes, not {HASH_BYTES} for each of {digest.images:,} images")
    return np.frombuffer(content, np.uint8).reshape(digest.images, HASH_BYTES)


def check_settings(data: Packed, settings: Prepare) -> None:
    """Raise UserError if the packed images have another `prepare.size` or `prepare.fit`."""
    pairs = {"size": (data.size, settings.size), "fit": (data.fit, settings.fit)}
    for key, (actual, expected) in pairs.items():
        if actual != expected:
            reason = f"the packed images in {data.folder} have {actual}"
            remedy = "or pack again (perennial repro --force --single-item prepare); then perennial repro"
            raise UserError(Fault(f"prepare.{key}", str(expected), "differs", reason, str(actual), remedy))


def write(folder: Path, images: Iterable[NDArray[np.uint8]], count: int, size: int, fit: Fit = "none") -> None:
    """Write `count` images, uint8 [size, size, 3] each, and their digests. One image is in memory at a time.

    They are not written through a memory map: there a full disk ends the process (SIGBUS) instead of raising OSError.
    Raises ValueError for another number or another shape of images.
    """
    digest = Digest("", count, size, fit)
    hashes = bytearray()
    remaining = iter(images)
    for name, in_shard in digest.shards().items():
        with (folder / name).open("wb") as file:
            for image in islice(remaining, in_shard):
                if image.shape != digest.shape[1:] or image.dtype != np.uint8:
                    number = len(hashes) // HASH_BYTES
                    raise ValueError(f"image {number}: {image.dtype} {image.shape}, not uint8 {digest.shape[1:]}")
                content = np.ascontiguousarray(image).data
                file.write(content)
                hashes += hashlib.sha256(content).digest()
            file.flush()
            os.fsync(file.fileno())
    images_written = len(hashes) // HASH_BYTES + sum(1 for _ in remaining)
    if images_written != count:
        raise ValueError(f"{images_written} images, not {count}")
    with (folder / HASHES).open("wb") as file:
        file.write(hashes)
        file.flush()
        os.fsync(file.fileno())
    fields = {"sha256": hashlib.sha256(hashes).hexdigest(), "images": count, "size": size}
    files.write_json(folder / DIGEST, fields if fit == "none" else fields | {"fit": fit})
