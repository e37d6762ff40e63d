"""The table labels.csv: the class of each image, and optionally its split and its group.

The first line names the columns, in any order: path and label, and optionally split and group. A path is relative to
the table. The images may be in any folder.
"""

from collections.abc import Mapping, Sequence

from pipeline.base.errors import Fault, UserError
from pipeline.sources import user_table
from pipeline.sources.layout import SPELLINGS, ImageFile, Layout, looks_like_image, split_of, unused_images_note

NAME = "labels.csv"


def layout(where: str, content: bytes, names: Sequence[str], top: str, notes: list[str]) -> Layout:
    """The layout of the files `names` by the table in the folder `where`; the notes, with those of the table.

    The names are relative to the table, and the paths of the layout begin with `top`. Raises UserError for a table that
    cannot be read, a file that is missing or listed twice, an image without a class, an unknown split, and fewer than
    two classes.
    """
    path_of_table = f"{where}/{NAME}"
    remedy = "if the folders name the classes, rename the table"
    table = user_table.parse(path_of_table, content, ("path", "label"), ("split", "group"), remedy)
    rows, table_notes = user_table.by_path(path_of_table, table, set(names), _line_fault)
    image_files = [
        ImageFile(top + path, cells["label"], split_of(cells.get("split", "")), cells.get("group", ""))
        for path, cells in sorted(rows.items())
    ]
    classes = sorted({image_file.label for image_file in image_files})
    if len(classes) < 2:
        raise UserError(
            Fault(path_of_table, f"{len(classes)} classes", "missing", allowed="at least 2 in the column label")
        )
    notes += table_notes
    unlisted = [name for name in names if looks_like_image(name) and name not in rows]
    notes += unused_images_note(unlisted, f"not in {NAME}")
    return Layout(image_files, classes, NAME, tuple(notes), None)


def _line_fault(cells: Mapping[str, str], path: str) -> str:
    """What is wrong with a line; empty if nothing."""
    if not cells["label"]:
        return f"{path!r:.100} has no label"
    if {"\r", "\0"} & set(cells["label"]):
        return f"{cells['label']!r:.40}: a control character"
    if cells.get("split") and not split_of(cells["split"]):
        return f"split {cells['split']!r:.40}; allowed: {', '.join(SPELLINGS)}, or nothing"
    return ""
