"""The image files below a folder. Their folders name the class, and the split if the data set has one.

The top folders are the classes. If the top folders are train, val and test, in any of SPELLINGS, the classes are one
level below, and this split is kept. No class may have the name of a split. Files beside the class folders, such as a
licence, are not images of the data set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.data.split_table import SPLITS

SPELLINGS = {  # usual names of split folders, in lower case → the split
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip


@dataclass(frozen=True)
class ImageFile:
    """A file below a class folder."""

    path: str  # relative to paths.images, with /
    label: str  # the class
    given_split: str  # from its top folder; empty if the data set has no split


def find_image_files(folder: Path) -> tuple[list[ImageFile], list[str]]:
    """All images below `folder`, sorted by path (as UTF-8 bytes), and all classes, sorted.

    Raises UserError for a layout that is neither classes nor splits with classes, and for a name that is not UTF-8.
    """
    paths = _files(folder)
    classes = _subfolders(folder)
    split_of_top = _given_splits(folder, classes)
    if split_of_top:
        classes = sorted({name for top in split_of_top for name in _subfolders(folder / top)})
    _check_class_names(folder, classes)
    if len(classes) < 2:
        there = f"only one class folder ({classes[0]!r})" if classes else "no class folder"
        raise UserError(
            f"{folder}: {there}; needed: at least 2, each with the images of one class; "
            "if they are inside another folder, move them one level up (in paths.inbox or the archive)"
        )
    image_files = []
    for path in paths:
        top, *inner = path.split("/") if split_of_top else ["", *path.split("/")]
        if len(inner) > 1:  # else the file is beside the class folders
            image_files.append(ImageFile(path, inner[0], split_of_top.get(top, "")))
    return image_files, classes


def _subfolders(folder: Path) -> list[str]:
    """The names of the folders in a folder, without junk, sorted."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not files.is_junk(Path(path.name)))


def _files(folder: Path) -> list[str]:
    """The relative paths of all files below `folder` without junk, sorted as UTF-8 bytes."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; run the download stage first (dvc repro does)")
    names = []
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if files.is_junk(relative) or (path.is_dir() and not path.is_symlink()):
            continue
        name = relative.as_posix()
        _check_name(path, name)
        if not path.is_file():
            raise UserError(f"{path}: neither a file nor a folder (a link?); remove it, or put the file there")
        names.append(name)
    return sorted(names)  # code points have the order of their UTF-8 bytes


def _check_name(path: Path, name: str) -> None:
    """Raise UserError for a name that split.csv cannot hold."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        escaped = ascii(path.as_posix())
        raise UserError(f"{escaped}: the name is not UTF-8; rename it (convmv -f latin1 -t utf8 does)") from None
    if "\r" in name:  # Python 3.11 and 3.12 write it to a CSV file without quotes, and read it as the end of a line
        raise UserError(f"{path.as_posix()!r}: a carriage return in a name; rename or remove it")


def _split_of(name: str) -> str:
    """The split that a folder name stands for; empty if none."""
    return SPELLINGS.get(name.lower(), "")


def _given_splits(folder: Path, tops: Sequence[str]) -> dict[str, str]:
    """Top folder → its split, if the top folders are train, val and test; empty if none of them is a split.

    Raises UserError if a split is missing, is there twice, or is beside a class folder.
    """
    named = {top: split for top in sorted(tops, key=_split_order) if (split := _split_of(top))}
    if not named:
        return {}
    classes = [top for top in tops if top not in named]
    missing = [split for split in SPLITS if split not in named.values()]
    if len(set(named.values())) < len(named):
        raise UserError(
            f"{folder}: folders {' and '.join(named)}: two spellings of one split; allowed: one folder for each of "
            f"{', '.join(SPLITS)}; merge the folders that mean the same"
        )
    if classes:
        first = ", ".join(classes[:5]) + (", …" if len(classes) > 5 else "")
        raise UserError(
            f"{folder}: {', '.join(named)} beside class folders {first}; allowed: only splits or only classes; move or "
            f"remove one of the two (if a class has this name, rename its folder, such as to {next(iter(named))}_class)"
        )
    if missing:
        raise UserError(
            f"{folder}: folders {' and '.join(named)}, but no {' and no '.join(missing)}; allowed: all of "
            f"{', '.join(SPLITS)} (their split is kept), or class folders at the top (the split is made)"
        )
    return named


def _split_order(top: str) -> tuple[int, str]:
    """A sort key that puts folders in the order train, val, test."""
    return SPLITS.index(_split_of(top) or "test"), top


def _check_class_names(folder: Path, classes: Sequence[str]) -> None:
    """Raise UserError for a class folder with the name of a split: there is one level of folders too many."""
    for name in filter(_split_of, classes):
        raise UserError(
            f"{folder}: a class folder has the name of a split, {name!r}; allowed: any other name; remove the extra "
            f"level of folders, or rename the class"
        )
