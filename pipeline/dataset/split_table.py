"""The tables split.csv and kept.csv. `split` writes both.

split.csv has one row per image file; `train` and `evaluate` read it. kept.csv has the images that `prepare` packs,
those of split.csv in the same order. It is the same for each seed, fold and fraction, and with split.train_share and
split.leave_out it has the images that they do not use, too: none of these settings packs the images again.
"""

from collections.abc import Sequence
from pathlib import Path

from pipeline.base import files, schema

SPLITS = ("train", "val", "test")
DUPLICATE, CONFLICT = "duplicate", "conflicting labels"  # reasons; the first is followed by " of " and a path
BY_HAND = "excluded by hand"  # a reason, maybe followed by ": " and why
LEAVE_OUT, TRAIN_SHARE = "split.leave_out", "split.train_share"  # reasons: these settings exclude the image
HEADER = ("path", "class", "split", "reason", "width", "height", "pixels", "phash", "group")
KEPT_COLUMNS = ("path", "class", "split", "reason", "width", "height")  # the columns that the row of a kept image needs
PACKED_COLUMNS = ("path", "width", "height")  # of kept.csv


def all_rows(path: Path, columns: Sequence[str] = HEADER) -> list[dict[str, str]]:
    """The rows of all files, in order, with at least these columns. Raises UserError if the table is damaged."""
    with schema.reading(path, schema.checkout(path)):
        rows = files.read_csv(path)
        ends = path.read_bytes().count(b"\r\n")  # and those inside of names, which a cell keeps
        if ends and ends > sum(str(cell).count("\r\n") for row in rows for cell in row.values()):
            raise ValueError("lines end with CRLF, as another program writes them")
        for number, row in enumerate(rows, start=2):
            if fault := _fault(row, columns):
                raise ValueError(f"line {number}: {fault}")
        if all("reason" in columns and row["reason"] for row in rows):
            raise ValueError("no image in it")
    return rows


def kept_rows(path: Path) -> list[dict[str, str]]:
    """The rows of the images that are used, in order. Raises UserError if the table is damaged."""
    return [row for row in packed_rows(path) if not row["reason"]]


def packed_rows(path: Path) -> list[dict[str, str]]:
    """The rows of the packed images: row i is image i. Raises UserError if the table is damaged."""
    return [row for row in all_rows(path, KEPT_COLUMNS) if is_packed(row["reason"])]


def is_packed(reason: str) -> bool:
    """Whether an image with this reason is packed: it is used, or a setting that a study changes leaves it out."""
    return reason in ("", LEAVE_OUT, TRAIN_SHARE)


def kind(reason: str) -> str:
    """A reason without the part about one image: the path of its duplicate, or why a person excluded it."""
    if reason.startswith(f"{DUPLICATE} of "):
        return DUPLICATE
    return BY_HAND if reason.startswith(f"{BY_HAND}: ") else reason


def _fault(row: dict[str, str], columns: Sequence[str]) -> str:
    """The fault of a row; empty if `split` could have written it."""
    if None in row:  # the key under which csv puts cells without a column
        return "more cells than columns"
    if missing := [column for column in columns if row.get(column) is None]:
        return f"no cell for {', '.join(missing)}"
    needed = {column: row[column] for column in columns}
    return _fault_of_packed(needed) if is_packed(needed.get("reason", "")) else ""


def _fault_of_packed(row: dict[str, str]) -> str:
    """The fault of the row of a packed image, of split.csv or kept.csv; empty without a fault."""
    splits = SPLITS if row.get("reason") == "" else ("",)
    if row.get("split", "") not in splits:
        return f"split {row['split']!r:.40} is none of {', '.join(splits)}"
    if not all(cell.isascii() and cell.isdecimal() and len(cell) < 10 for cell in (row["width"], row["height"])):
        return f"size {row['width']!r:.20} × {row['height']!r:.20} is not two numbers of pixels"
    if not (row["width"].strip("0") and row["height"].strip("0")):
        return "an image without a pixel"
    path, label = row["path"], row.get("class", "-")
    if not (path and label) or path.startswith("/") or "\0" in path + label or ".." in path.split("/"):
        return f"path {path!r:.80} of class {label!r:.40} is no image's"
    return ""
