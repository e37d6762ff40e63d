"""The file format of the packed pictures: `prepare` writes it, `train` and `evaluate` read it.

A folder with `images.npy`, uint8 [N, S, S, 3], one row a kept line of split.csv in its order, and `digest.json`
(`sha256` of images.npy's bytes, `pictures` N, `size` S). What a row shows (path, class, split) stands in split.csv.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline import files
from pipeline.errors import Refusal

IMAGES, DIGEST = "images.npy", "digest.json"


@dataclass(frozen=True)
class Packed:
    """The pictures of a data set with what is known of them; row i of each field is one picture."""

    images: NDArray[np.uint8]  # [N, S, S, 3], mapped from disk, read-only
    paths: tuple[str, ...]  # relative to paths.images
    classes: tuple[str, ...]  # [K], sorted
    labels: NDArray[np.int64]  # [N], row numbers of `classes`
    sizes: NDArray[np.int32]  # [N, 2]: width and height of the original picture, upright
    splits: NDArray[np.str_]  # [N]: train, val or test
    digest: str  # SHA-256 of images.npy

    def rows(self, split: str) -> NDArray[np.int64]:
        """The row numbers of one split, ascending."""
        return np.flatnonzero(self.splits == split)


def kept(split_csv: Path) -> list[dict[str, str]]:
    """The kept lines of split.csv: what the rows of images.npy show."""
    return [line for line in files.read_csv(split_csv) if not line["reason"]]


def load(folder: Path, split_csv: Path) -> Packed:
    """Open a packed folder. Raises Refusal if it was not made from this split.csv."""
    images = np.load(folder / IMAGES, mmap_mode="r")
    digest = json.loads((folder / DIGEST).read_text(encoding="utf-8"))
    lines = kept(split_csv)
    if not len(images) == digest["pictures"] == len(lines):
        raise Refusal(
            f"{folder / IMAGES}: {len(images)} pictures ({folder / DIGEST}: {digest['pictures']}), but {split_csv} "
            f"keeps {len(lines)}; needed: the same number; run the prepare stage again (dvc repro does)"
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
        digest=digest["sha256"],
    )


def refuse_other_size(data: Packed, folder: Path, size: int) -> None:
    """Raise Refusal if the squares of the packed `folder` are not of `size` pixels (`prepare.size`)."""
    if (found := data.images.shape[1]) != size:
        raise Refusal(
            f"prepare.size: {size}, but the squares in {folder / IMAGES} have {found} pixels; needed: the same; "
            f"pack them anew (dvc repro --force --single-item prepare), or set prepare.size to {found}; then dvc repro"
        )


def write(folder: Path, squares: Iterable[NDArray[np.uint8]], count: int, size: int) -> None:
    """Write `count` squares, uint8 [size, size, 3] each, one at a time, hashing them on the way.

    Written as a plain stream: on a full disk that is an error, where a memory map would end the process (SIGBUS).
    Raises ValueError for another number or another shape of squares.
    """
    header = io.BytesIO()
    layout = {"descr": "|u1", "fortran_order": False, "shape": (count, size, size, 3)}
    np.lib.format.write_array_header_1_0(header, layout)
    sha256 = hashlib.sha256(header.getvalue())
    written = 0
    with (folder / IMAGES).open("wb") as file:
        file.write(header.getvalue())
        for square in squares:
            if square.shape != (size, size, 3) or square.dtype != np.uint8:
                raise ValueError(f"square {written}: {square.dtype} {square.shape}, not uint8 {(size, size, 3)}")
            content = np.ascontiguousarray(square).data
            file.write(content)
            sha256.update(content)
            written += 1
        file.flush()
        os.fsync(file.fileno())
    if written != count:
        raise ValueError(f"{written} squares, not {count}")
    files.write_json(folder / DIGEST, {"sha256": sha256.hexdigest(), "pictures": count, "size": size})
