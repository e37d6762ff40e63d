"""The table split.csv: one row per image file. `split` writes it; `prepare`, `train` and `evaluate` read it."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.base import files, schema

SPLITS = ("train", "val", "test")
DUPLICATE, CONFLICT = "duplicate", "conflicting labels"  # reasons; the first is followed by " of " and a path
BY_HAND = "excluded by hand"  # a reason, maybe followed by ": " and why
LEAVE_OUT, TRAIN_SHARE = "split.leave_out", "split.train_share"  # reasons: these settings exclude the image
HEADER = ("path", "class", "split", "reason", "width", "height", "pixels", "phash", "group")
KEPT_COLUMNS = ("path", "class", "split", "reason", "width", "height")  # the columns that the row of a kept image needs


def all_rows(path: Path, columns: Sequence[str] = HEADER) -> list[dict[str, str]]:
    """The rows of all files, in order, with at least these columns. Raises UserError if the table is damaged."""
    with schema.reading(path, schema.checkout(path)):
        rows = files.read_csv(path)
        for number, row in enumerate(rows, start=2):
            if fault := _fault(row, columns):
                raise ValueError(f"line {number}: {fault}")
        if all(row["reason"] for row in rows):
            raise ValueError("no image in it")
    return rows


def kept_rows(path: Path) -> list[dict[str, str]]:
    """The rows of the kept images, in order; row i is image i of the packed ones. Raises UserError if it is damaged."""
    return [row for row in all_rows(path, KEPT_COLUMNS) if not row["reason"]]


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
    return "" if row["reason"] else _fault_of_kept(row)


def _fault_of_kept(row: dict[str, str]) -> str:
    """The fault of the row of a kept image; empty without a fault."""
    if row["split"] not in SPLITS:
        return f"split {row['split']!r:.40} is none of {', '.join(SPLITS)}"
    if not all(cell.isascii() and cell.isdecimal() and len(cell) < 10 for cell in (row["width"], row["height"])):
        return f"size {row['width']!r:.20} × {row['height']!r:.20} is not two numbers of pixels"
    path = row["path"]
    if not (path and row["class"]) or path.startswith("/") or "\0" in path + row["class"] or ".." in path.split("/"):
        return f"path {path!r:.80} of class {row['class']!r:.40} is no image's"
    return ""
