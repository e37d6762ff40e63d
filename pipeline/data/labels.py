"""The table labels.csv: the class of each image, and optionally its split and its group.

The first line names the columns, in any order: path and label, and optionally split and group. A path is relative to
the table. The images may be in any folder.
"""

import csv
import io
from collections.abc import Iterator, Sequence

from pipeline.base.errors import UserError
from pipeline.data.layout import SPELLINGS, ImageFile, Layout, looks_like_image, split_of, unused

NAME = "labels.csv"
NEEDED = ("path", "label")
COLUMNS = (*NEEDED, "split", "group")
MOST_NAMED = 5  # faults in one message

Line = tuple[int, dict[str, str]]  # its number in the file, and its cells by column


def layout(where: str, content: bytes, names: Sequence[str], top: str, notes: list[str]) -> Layout:
    """The layout that a table in the folder `where` gives to the files `names` beside and below it.

    `top` comes before each path. Raises UserError for a table that cannot be read, a file that is missing or listed
    twice, an image without a class, an unknown split, and fewer than two classes.
    """
    table = f"{where}/{NAME}"
    header, lines = _parsed(table, content)
    there = set(names)
    rows = {}
    faults = []
    for number, cells in lines:
        path = _path(cells["path"], there)
        if fault := _fault(cells, path, path in there, path in rows):
            faults.append(f"line {number}: {fault}")
        rows[path] = cells
    _check(table, faults)
    image_files = [
        ImageFile(top + path, cells["label"], split_of(cells.get("split", "")), cells.get("group", ""))
        for path, cells in sorted(rows.items())
    ]
    classes = sorted({image_file.label for image_file in image_files})
    if len(classes) < 2:
        raise UserError(f"{table}: {len(classes)} classes; needed: at least 2 in the column label")
    unknown = [name for name in header if name not in COLUMNS]
    notes += [f"{NAME}: columns that are not read: {', '.join(unknown)}"] if unknown else []
    unlisted = [name for name in names if looks_like_image(name) and name not in rows]
    notes += unused(unlisted, f"not in {NAME}")
    return Layout(image_files, classes, NAME, tuple(notes), None)


def _parsed(table: str, content: bytes) -> tuple[list[str], list[Line]]:
    """The names of the columns, and the lines that are not empty. Raises UserError for a damaged table."""
    try:
        text = content.decode("utf-8-sig")
        lines = list(_lines(text))
    except UnicodeDecodeError as error:
        raise UserError(f"{table}: not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except csv.Error as error:
        raise UserError(f"{table}: not a table with commas: {error}; write it again") from None
    header = [name.strip().lower() for name in lines[0][1]] if lines else []
    lacking = [name for name in NEEDED if name not in header]
    if lacking or len(set(header)) < len(header):
        fault = f"no column {' and '.join(lacking)}" if lacking else "two columns with one name"
        raise UserError(
            f"{table}: {fault} in its first line ({', '.join(header)!r:.100}); needed: {', '.join(NEEDED)}, optionally "
            f"split and group, with commas between; if the folders name the classes, rename the table"
        )
    uneven = [f"line {number}: {len(cells)} cells" for number, cells in lines[1:] if len(cells) != len(header)]
    _check(table, uneven, f"needed: {len(header)} in each line, as in the first")
    return header, [(number, dict(zip(header, map(str.strip, cells), strict=True))) for number, cells in lines[1:]]


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line that is not empty, with its number. Raises csv.Error."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    for cells in reader:
        if any(map(str.strip, cells)):
            yield reader.line_num, cells


def _path(written: str, there: set[str]) -> str:
    """A path as it is in `there`, if it is: without ./ at its begin, and with / for the \\ of Windows."""
    plain = written.removeprefix("./")
    return plain if plain in there else plain.replace("\\", "/").removeprefix("./")


def _fault(cells: dict[str, str], path: str, is_there: bool, is_twice: bool) -> str:
    """What is wrong with a line; empty if nothing."""
    if not is_there or path.endswith("/"):
        return f"{cells['path']!r:.100}: no such file"
    if is_twice:
        return f"{path!r:.100} is there twice"
    if not cells["label"]:
        return f"{path!r:.100} has no label"
    if {"\r", "\0"} & set(cells["label"]):
        return f"{cells['label']!r:.40}: a control character"
    if cells.get("split") and not split_of(cells["split"]):
        return f"split {cells['split']!r:.40}; allowed: {', '.join(SPELLINGS)}, or nothing"
    return ""


def _check(table: str, faults: Sequence[str], needed: str = "correct or remove these lines") -> None:
    """Raise UserError if there are faults. It names the first five."""
    if faults:
        more = f" and {len(faults) - MOST_NAMED:,} more" if len(faults) > MOST_NAMED else ""
        raise UserError(f"{table}: {', '.join(faults[:MOST_NAMED])}{more}; {needed}")
