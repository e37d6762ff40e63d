"""Groups that the user names, such as the images of one patient or one video: a group is in one split.

The column `group` of labels.csv names them, and `split.group` finds them in the paths: with `folder` the folder below
the class folder, with a regular expression the text of its one capture group. The same name in two classes is the same
group. An image without a name is a group of its own.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence

from pipeline.base.errors import Fault, UserError
from pipeline.base.text import visible
from pipeline.sources.layout import ImageFile, Layout, count_with_verb

COPIES = (  # what tools add to the names of copies of one image, as values of split.group
    r"(.*)_(?:jpe?g|png|bmp|webp)[.]rf[.]",  # Roboflow
    r"(?i)(.*?)(?:[-_ ](?:aug(?:mented)?|[hv]?flip(?:ped)?|mirror(?:ed)?|rot(?:at(?:ed|ion))?|crop(?:ped)?|copy)"
    r"[-_ ]?\d*)*[.]\w+$",
)

Names = list[tuple[str, ...]]  # the groups that each image is in


def named_groups(layout: Layout, setting: str) -> Names:
    """The groups that each image of a layout is in. Raises UserError if `setting` does not fit the layout."""
    in_paths = _names_in_paths(layout, setting)
    return [
        tuple(f"{source} {name}" for source, name in (("column", file.group), ("path", in_path)) if name)
        for file, in_path in zip(layout.image_files, in_paths, strict=True)
    ]


def _names_in_paths(layout: Layout, setting: str) -> list[str]:
    """The name of the group in the path of each image; empty if there is none."""
    paths = [file.path for file in layout.image_files]
    if setting == "none":
        return [""] * len(paths)
    if setting == "folder":
        if layout.class_depth is None:
            reason = f"the paths of {layout.kind} have no class folder"
            allowed = f"none, a regular expression, or a column group in {layout.kind}"
            raise UserError(Fault("split.group", "folder", "pair", reason, allowed))
        depth = layout.class_depth + 1
        return [path.split("/")[depth] if path.count("/") > depth else "" for path in paths]
    matches = (re.search(setting, path) for path in paths)
    return [(match[1] or "") if match else "" for match in matches]


def copies_across_splits(image_files: Sequence[ImageFile], splits: Sequence[str]) -> tuple[int, list[str]]:
    """The number of images whose copies, by the names of files of one class, are in two splits; and a note on each way.

    The note has the value of split.group that keeps them together.
    """
    total, notes = 0, []
    for pattern in COPIES:
        found: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)  # class and beginning → file name → split
        for file, split in zip(image_files, splits, strict=True):
            name = file.path.rpartition("/")[2]
            if match := re.search(pattern, name):
                found[file.label, match[1]][name.rpartition(".")[0]] = split
        divided = [names for names in found.values() if len(set(names.values())) > 1]
        if divided:
            total += len(divided)
            first = " and ".join(visible(name) for name in sorted(divided[0])[:2])
            subject = count_with_verb(len(divided), "image", "images")
            notes.append(
                f"{subject} in more than one part, as copies by their names (first: {first}): the figures are too "
                f"good; to keep copies together, set split.group: '{pattern}'"
            )
    return total, notes


def rows_by_group(names: Names) -> dict[str, list[int]]:
    """Name of a group → the numbers of its images."""
    rows = defaultdict(list)
    for row, image_groups in enumerate(names):
        for name in image_groups:
            rows[name].append(row)
    return dict(rows)


def identities(names: Names, pixels: Sequence[str]) -> list[str]:
    """The hash of each image from which its group gets its key: of the group's name; without a name, of the pixels.

    So a named group keeps its key, and its split, when an image is added to it.
    """
    return [
        min((hashlib.sha256(name.encode()).hexdigest() for name in image_groups), default=pixel_hash)
        for image_groups, pixel_hash in zip(names, pixels, strict=True)
    ]


def report(image_files: Sequence[ImageFile], names: Names, splits: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Counts for findings.csv, and sentences for the user, of images with these groups and splits."""
    rows = rows_by_group(names)
    ungrouped_images = [file.path for file, image_groups in zip(image_files, names, strict=True) if not image_groups]
    divided_groups = [name for name in sorted(rows) if len({splits[row] for row in rows[name]}) > 1]
    notes = [f"groups: {len(rows):,}" if divided_groups else f"groups: {len(rows):,}, each in one split"]
    if ungrouped_images:
        subject = count_with_verb(len(ungrouped_images), "image", "images")
        notes.append(f"{subject} in no group, and a group by itself (first: {visible(ungrouped_images[0])})")
    if divided_groups:
        subject = count_with_verb(len(divided_groups), "group", "groups")
        notes.append(f"{subject} in more than one given split (first: {visible(divided_groups[0].partition(' ')[2])})")
    return {"named": len(rows), "images_without": len(ungrouped_images), "across_splits": len(divided_groups)}, notes
