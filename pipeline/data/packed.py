"""The file format of the packed images: `prepare` writes it, `train` and `evaluate` read it.

A folder with `images.npy`, uint8 [N, S, S, 3], one row a kept line of split.csv in its order, and `digest.json`
(`sha256` of images.npy's bytes, `images` N, `size` S). What a row shows (path, class, split) stands in split.csv.
"""

import hashlib
import io
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.base import files, schema
from pipeline.base.errors import UserError

IMAGES, DIGEST = "images.npy", "digest.json"
SPLITS = ("train", "val", "test")
COLUMNS = ("path", "class", "split", "reason", "width", "height")  # of split.csv, those that are read here


@dataclass(frozen=True)
class Digest:
    """The content of digest.json."""

    __pydantic_config__ = schema.STRICT

    sha256: schema.Sha256  # of images.npy
    images: schema.Count
    size: schema.Side


@dataclass(frozen=True)
class Packed:
    """The images of a data set with what is known of them; row i of each field is one image."""

    images: NDArray[np.uint8]  # [N, S, S, 3], mapped from disk, read-only
    paths: tuple[str, ...]  # relative to paths.images
    classes: tuple[str, ...]  # [K], sorted
    labels: NDArray[np.int64]  # [N], row numbers of `classes`
    sizes: NDArray[np.int32]  # [N, 2]: width and height of the original image, upright
    splits: NDArray[np.str_]  # [N]: train, val or test
    digest: str  # SHA-256 of images.npy

    def rows(self, split: str) -> NDArray[np.int64]:
        """The row numbers of one split, ascending."""
        return np.flatnonzero(self.splits == split)


def kept(split_csv: Path) -> list[dict[str, str]]:
    """The kept lines of split.csv: what the rows of images.npy show. Raises UserError if it is damaged."""
    with schema.ours(split_csv, schema.checkout(split_csv)):
        lines = files.read_csv(split_csv)
        for number, line in enumerate(lines, start=2):
            if fault := _fault(line):
                raise ValueError(f"line {number}: {fault}")
        found = [line for line in lines if not line["reason"]]
        if not found:
            raise ValueError("no image in it")
    return found


def _fault(line: dict[str, str]) -> str:
    """What is wrong with a line of split.csv; nothing if it is as `split` writes it."""
    if None in line:  # where csv puts the cells for which there is no column
        return "more cells than columns"
    if missing := [column for column in COLUMNS if line.get(column) is None]:
        return f"no cell for {', '.join(missing)}"
    return "" if line["reason"] else _fault_of_a_kept(line)


def _fault_of_a_kept(line: dict[str, str]) -> str:
    if line["split"] not in SPLITS:
        return f"split {line['split']!r:.40} is none of {', '.join(SPLITS)}"
    if not all(cell.isascii() and cell.isdecimal() and len(cell) < 10 for cell in (line["width"], line["height"])):
        return f"size {line['width']!r:.20} × {line['height']!r:.20} is not two numbers of pixels"
    path = line["path"]
    if not (path and line["class"]) or path.startswith("/") or "\0" in path + line["class"] or ".." in path.split("/"):
        return f"path {path!r:.80} of class {line['class']!r:.40} is no image's"
    return ""


def load(folder: Path, split_csv: Path) -> Packed:
    """Open a packed folder. Raises UserError if it is damaged, or was not made from this split.csv."""
    digest = schema.json_of(folder / DIGEST, Digest, schema.checkout(folder))
    images, lines = _mapped(folder, digest), kept(split_csv)
    if digest.images != len(lines):
        raise UserError(
            f"{folder / IMAGES}: {digest.images} images, but {split_csv} keeps {len(lines)}; "
            f"needed: the same number; run the prepare stage again (dvc repro does)"
        )
    classes = tuple(sorted({line["class"] for line in lines}))
    number = {name: index for index, name in enumerate(classes)}
    return Packed(
        images=images,
        paths=tuple(line["path"] for line in lines),
        classes=classes,
        labels=np.array([number[line["class"]] for line in lines], np.int64),
        sizes=np.array([(int(line["width"]), int(line["height"])) for line in lines], np.int32),
        splits=np.array([line["split"] for line in lines]),
        digest=digest.sha256,
    )


def _header(images: int, size: int) -> bytes:
    """How images.npy begins."""
    header = io.BytesIO()
    layout = {"descr": "|u1", "fortran_order": False, "shape": (images, size, size, 3)}
    np.lib.format.write_array_header_1_0(header, layout)
    return header.getvalue()


def _mapped(folder: Path, digest: Digest) -> NDArray[np.uint8]:
    """images.npy, mapped. Raises UserError if it is not what digest.json says.

    What its header claims is compared, never believed: it could claim Python objects, or more than any disk has.
    """
    path, header = folder / IMAGES, _header(digest.images, digest.size)
    shape = (digest.images, digest.size, digest.size, 3)
    with schema.ours(path, schema.checkout(folder)), path.open("rb") as file:
        if file.read(len(header)) != header:
            raise ValueError(f"it does not begin as an array of uint8 {list(shape)}, which {DIGEST} describes")
        found, needed = os.fstat(file.fileno()).st_size, len(header) + math.prod(shape)
        if found != needed:
            raise ValueError(f"{found:,} bytes, not {needed:,}")
        return np.memmap(file, np.uint8, "r", len(header), shape)


def check_packed_size(data: Packed, folder: Path, size: int) -> None:
    """Raise UserError if the images of the packed `folder` are not of `size` pixels (`prepare.size`)."""
    if (found := data.images.shape[1]) != size:
        raise UserError(
            f"prepare.size: {size}, but the packed images in {folder / IMAGES} have {found} pixels; needed: the same; "
            f"pack them anew (dvc repro --force --single-item prepare), or set prepare.size to {found}; then dvc repro"
        )


def write(folder: Path, images: Iterable[NDArray[np.uint8]], count: int, size: int) -> None:
    """Write `count` images, uint8 [size, size, 3] each, one at a time, hashing them on the way.

    Written as a plain stream: on a full disk that is an error, where a memory map would end the process (SIGBUS).
    Raises ValueError for another number or another shape of images.
    """
    header = _header(count, size)
    sha256 = hashlib.sha256(header)
    written = 0
    with (folder / IMAGES).open("wb") as file:
        file.write(header)
        for image in images:
            if image.shape != (size, size, 3) or image.dtype != np.uint8:
                raise ValueError(f"image {written}: {image.dtype} {image.shape}, not uint8 {(size, size, 3)}")
            content = np.ascontiguousarray(image).data
            file.write(content)
            sha256.update(content)
            written += 1
        file.flush()
        os.fsync(file.fileno())
    if written != count:
        raise ValueError(f"{written} images, not {count}")
    files.write_json(folder / DIGEST, {"sha256": sha256.hexdigest(), "images": count, "size": size})
