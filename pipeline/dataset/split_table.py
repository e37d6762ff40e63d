"""The tables split.csv and kept.csv. `split` writes both.

split.csv has one row per image file; `train` and `evaluate` read it. kept.csv has the images that `prepare` packs,
those of split.csv in the same order. It is the same for each seed, fold and fraction, and with split.train_share and
split.leave_out it has the images that they do not use, too: none of these settings packs the images again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.base import files, schema

SPLITS = ("train", "val", "test")
DUPLICATE, CONFLICT = "duplicate", "conflicting labels"  # reasons; the first is followed by " of " and a path
BY_HAND = "excluded by hand"  # a reason, maybe followed by ": " and why
LEAVE_OUT, TRAIN_SHARE = "split.leave_out", "split.train_share"  # reasons: these settings exclude the image
HEADER = ("path", "class", "split", "reason", "width", "height", "pixels", "phash", "group")
KEPT_COLUMNS = ("path", "class", "split", "reason", "width", "height")  # the columns that the row of a kept image needs
PACKED_COLUMNS = ("path", "width", "height")  # of kept.csv


class ImageRow(NamedTuple):
    """A row of split.csv: an image file, and what became of the file. The fields are the columns, in their order.

    A table may lack columns: those of kept.csv are `PACKED_COLUMNS`. Then the field has its default value.
    """

    path: str  # relative to paths.images, with /
    label: str = ""  # the column `class`
    split: str = ""  # empty for an image that is not used
    reason: str = ""  # why the image is not used; empty if it is used
    width: int = 0  # pixels, upright; 0 without a header
    height: int = 0
    pixels: str = ""  # SHA-256 of the decoded image; empty if it was not decoded
    phash: str = ""  # 16 hexadecimal digits; empty if it was not decoded
    group: str = ""  # 16 hexadecimal digits, the same for all images of a group; empty for an image that is not used


def write(rows: Sequence[ImageRow], split_csv: Path, kept_csv: Path) -> None:
    """Write both tables. `rows`: of all files."""
    packed = ((row.path, row.width, row.height) for row in rows if is_packed(row.reason))
    files.write_csv(kept_csv, PACKED_COLUMNS, packed)
    files.write_csv(split_csv, HEADER, rows)


def all_rows(path: Path, columns: Sequence[str] = HEADER) -> list[ImageRow]:
    """The rows of all files, in order, with at least these columns. Raises UserError if the table is damaged."""
    images = []
    with schema.reading(path, schema.checkout(path)):
        rows = files.read_csv(path)
        ends = path.read_bytes().count(b"\r\n")  # and those inside of names, which a cell keeps
        if ends and ends > sum(str(cell).count("\r\n") for row in rows for cell in row.values()):
            raise ValueError("lines end with CRLF, as another program writes them")
        for number, row in enumerate(rows, start=2):
            try:
                images.append(_image(row, columns))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
        if all(image.reason for image in images):
            raise ValueError("no image in it")
    return images


def kept_rows(path: Path) -> list[ImageRow]:
    """The rows of the images that are used, in order. Raises UserError if the table is damaged."""
    return [row for row in packed_rows(path) if not row.reason]


def packed_rows(path: Path) -> list[ImageRow]:
    """The rows of the packed images: row i is image i. Raises UserError if the table is damaged."""
    return [row for row in all_rows(path, KEPT_COLUMNS) if is_packed(row.reason)]


def is_packed(reason: str) -> bool:
    """Whether an image with this reason is packed: it is used, or a setting that a study changes leaves it out."""
    return reason in ("", LEAVE_OUT, TRAIN_SHARE)


def kind(reason: str) -> str:
    """A reason without the part about one image: the path of its duplicate, or why a person excluded it."""
    if reason.startswith(f"{DUPLICATE} of "):
        return DUPLICATE
    return BY_HAND if reason.startswith(f"{BY_HAND}: ") else reason


def _image(cells: Mapping[str, str | None], columns: Sequence[str]) -> ImageRow:
    """The row with these cells. Raises ValueError unless `split` could have written it."""
    if None in cells:  # the key under which csv puts cells without a column
        raise ValueError("more cells than columns")
    if missing := [column for column in columns if cells.get(column) is None]:
        raise ValueError(f"no cell for {', '.join(missing)}")
    path, label, split, reason, width, height, pixels, phash, group = (cells.get(column) or "" for column in HEADER)
    if not all(cell.isascii() and cell.isdecimal() and len(cell) < 10 for cell in (width, height)):
        raise ValueError(f"size {width!r:.20} × {height!r:.20} is not two numbers of pixels")
    row = ImageRow(path, label, split, reason, int(width), int(height), pixels, phash, group)
    if is_packed(reason):
        _check_packed(row, columns)
    return row


def _check_packed(row: ImageRow, columns: Sequence[str]) -> None:
    """Raise ValueError unless the row is that of a packed image, in a table with these columns."""
    splits = ("",) if row.reason else SPLITS
    if "split" in columns and row.split not in splits:
        raise ValueError(f"split {row.split!r:.40} is none of {', '.join(splits)}")
    if not (row.width and row.height):
        raise ValueError("an image without a pixel")
    path, label = row.path, row.label if "class" in columns else "-"
    if not (path and label) or path.startswith("/") or "\0" in path + label or ".." in path.split("/"):
        raise ValueError(f"path {path!r:.80} of class {label!r:.40} is no image's")
