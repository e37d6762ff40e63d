"""The table labels.csv: the class of each image, and optionally its split and its group.

The first line names the columns, in any order: path and label, and optionally split and group. A path is relative to
the table. The images may be in any folder.
"""

from collections.abc import Sequence

from pipeline.base import errors
from pipeline.base.errors import Fault, UserError
from pipeline.data import user_table
from pipeline.data.layout import SPELLINGS, ImageFile, Layout, looks_like_image, split_of, unused

NAME = "labels.csv"
COLUMNS = user_table.Columns(
    ("path", "label"), ("split", "group"), "; if the folders name the classes, rename the table"
)


def layout(where: str, content: bytes, names: Sequence[str], top: str, notes: list[str]) -> Layout:
    """The layout that a table in the folder `where` gives to the files `names` beside and below it.

    `top` comes before each path. Raises UserError for a table that cannot be read, a file that is missing or listed
    twice, an image without a class, an unknown split, and fewer than two classes.
    """
    table = f"{where}/{NAME}"
    unread, lines = user_table.parsed(table, content, COLUMNS)
    there = set(names)
    rows = {}
    faults = []
    for number, cells in lines:
        path = user_table.path(cells["path"], there)
        if value := _wrong(cells, path, path in there, path in rows):
            faults.append(Fault(f"{table}:{number}", value, "value", remedy=user_table.CORRECT))
        rows[path] = cells
    errors.raise_if_any(faults)
    image_files = [
        ImageFile(top + path, cells["label"], split_of(cells.get("split", "")), cells.get("group", ""))
        for path, cells in sorted(rows.items())
    ]
    classes = sorted({image_file.label for image_file in image_files})
    if len(classes) < 2:
        raise UserError(Fault(table, f"{len(classes)} classes", "missing", allowed="at least 2 in the column label"))
    notes += [f"{NAME}: columns that are not read: {', '.join(unread)}"] if unread else []
    unlisted = [name for name in names if looks_like_image(name) and name not in rows]
    notes += unused(unlisted, f"not in {NAME}")
    return Layout(image_files, classes, NAME, tuple(notes), None)


def _wrong(cells: dict[str, str], path: str, is_there: bool, is_twice: bool) -> str:
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
