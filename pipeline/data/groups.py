"""Groups that the user names, such as the images of one patient or one video: a group is in one split.

The column `group` of labels.csv names them, and `split.group` finds them in the paths: with `folder` the folder below
the class folder, with a regular expression the text of its one capture group. The same name in two classes is the same
group. An image without a name is a group of its own.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Sequence

from pipeline.base.errors import UserError
from pipeline.data.layout import ImageFile, Layout, are, in_one_line

Names = list[tuple[str, ...]]  # the groups that each image is in


def named_groups(layout: Layout, setting: str) -> Names:
    """The groups that each image of a layout is in. Raises UserError if `folder` does not fit the layout."""
    of_path = _finder(layout, setting)
    return [
        tuple(f"{source} {name}" for source, name in (("column", file.group), ("path", of_path(file.path))) if name)
        for file in layout.image_files
    ]


def _finder(layout: Layout, setting: str) -> Callable[[str], str]:
    """A function from a path to the name of its group; empty if it has none."""
    if setting == "none":
        return lambda path: ""
    if setting == "folder":
        if layout.class_depth is None:
            raise UserError(
                f"split.group: 'folder' with {layout.kind}, whose paths have no class folder; allowed: none, a regular "
                f"expression, or a column group in {layout.kind}"
            )
        depth = layout.class_depth + 1
        return lambda path: path.split("/")[depth] if path.count("/") > depth else ""
    expression = re.compile(setting)
    return lambda path: (match[1] or "") if (match := expression.search(path)) else ""


def rows_of(names: Names) -> dict[str, list[int]]:
    """Name of a group → the numbers of its images."""
    rows = defaultdict(list)
    for row, of_image in enumerate(names):
        for name in of_image:
            rows[name].append(row)
    return dict(rows)


def identities(names: Names, pixels: Sequence[str]) -> list[str]:
    """What the key of an image's group is chosen from: a hash of the group's name; without a name, that of the pixels.

    So a named group keeps its key, and its split, when an image is added to it.
    """
    return [
        min((hashlib.sha256(name.encode()).hexdigest() for name in of_image), default=own)
        for of_image, own in zip(names, pixels, strict=True)
    ]


def report(image_files: Sequence[ImageFile], names: Names, splits: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Of images with these groups and splits: counts for findings.csv, and sentences for the user."""
    rows = rows_of(names)
    alone = [file.path for file, of_image in zip(image_files, names, strict=True) if not of_image]
    across = [name for name in sorted(rows) if len({splits[row] for row in rows[name]}) > 1]
    notes = [f"groups: {len(rows):,}, each in one split" if not across else f"groups: {len(rows):,}"]
    if alone:
        number = are(len(alone), "image", "images")
        notes.append(f"{number} in no group, and a group by itself (first: {in_one_line(alone[0])})")
    if across:
        number = are(len(across), "group", "groups")
        notes.append(f"{number} in more than one given split (first: {in_one_line(across[0].partition(' ')[2])})")
    return {"named": len(rows), "images_without": len(alone), "across_splits": len(across)}, notes
