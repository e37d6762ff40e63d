"""The image files below a folder. Their folders name the class, and the split if the data set has one.

The top folders are the classes. If the top folders are train, val and test, in any of SPELLINGS, the classes are one
level below, and this split is kept; val and test may be missing. If one top folder holds all others, the same is true
inside it. No class may have the name of a split. Files beside the class folders, such as a licence, are not images of
the data set. A table labels.csv at the top replaces all this (labels.py).

Here nothing is read from the disk: originals.py lists the files.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from pipeline.base.errors import Fault, UserError
from pipeline.base.text import in_words
from pipeline.dataset.split_table import SPLITS
from pipeline.sources import labels
from pipeline.sources.layout import (
    ImageFile,
    Layout,
    looks_like_image,
    similar_class_notes,
    split_of,
    splits_of,
    unused_images_note,
)

LFS = b"version https://git-lfs.github.com/spec/"  # the begin of a file that Git LFS has not fetched
TABLE = f"a table {labels.NAME} with the columns path and label"
# Folders of images, and beside them of boxes or masks, as tools for object detection and segmentation have them.
IMAGES = re.compile(r".*(image|img|photo|picture)s?")
BOXES = re.compile(r"gt|.*(label|mask|annotation|segmentation|ground.?truth|trimap|box|boxe)s?")


def interpret(folder: str, names: Sequence[str], read: Callable[[str], bytes]) -> Layout:
    """The layout of the files `names` below `folder`. `read` gives a file's bytes.

    Raises UserError for a layout that is not understood.
    """
    names = sorted(names)
    first = next(filter(looks_like_image, names), "")
    if first and read(first).startswith(LFS):
        allowed = f"one folder per class, with images, or {TABLE}"
        fault = "a pointer of Git LFS, no image"
        raise UserError(Fault(f"{folder}/{first}", fault, "missing", "", allowed, "git lfs pull"))
    top = _top_folder(names)
    notes = [f"all images are in the folder {top.rstrip('/')!r}; it is read as if it were the top"] if top else []
    inner_names = [name.removeprefix(top) for name in names if name.startswith(top)]
    where = f"{folder}/{top}".rstrip("/") or "/"
    if labels.NAME in inner_names:
        layout = labels.layout(where, read(top + labels.NAME), inner_names, top, notes)
        remedy = f"give them one name in {labels.NAME}"
    else:
        layout = _folder_layout(where, inner_names, top, notes)
        remedy = "put their images into one of these folders, and remove the others"
    return replace(layout, notes=(*layout.notes, *similar_class_notes(layout.classes, remedy)))


def _folder_layout(where: str, names: Sequence[str], top: str, notes: list[str]) -> Layout:
    """The layout of class folders, or of split folders with class folders in them."""
    tops = _subfolders(names)
    splits = _top_splits(where, tops)
    unlabelled = [name for name in splits if not _subfolders(names, f"{name}/")]
    labelled = {name: split for name, split in splits.items() if name not in unlabelled}
    if splits and "train" not in labelled.values():
        raise UserError(_without_train(where, splits))
    classes = sorted({label for name in labelled for label in _subfolders(names, f"{name}/")}) if splits else tops
    depth = top.count("/") + bool(splits)
    _check_classes(where, names, classes)
    image_files, stray_images = [], []
    for name in names:
        first, *inner = name.split("/") if splits else ["", *name.split("/")]
        if len(inner) > 1:
            image_files.append(ImageFile(top + name, inner[0], labelled.get(first, "")))
        elif looks_like_image(name):
            stray_images.append(name)
    for name in unlabelled:
        images = [path for path in stray_images if path.startswith(f"{name}/")]
        if images:
            notes += unused_images_note(images, f"{name}/ has no class folder, so they have no label")
        else:
            notes.append(f"{name}/ has no class folder; it is not used")
    stray_images = [path for path in stray_images if path.split("/")[0] not in unlabelled]
    notes += unused_images_note(stray_images, "beside the class folders")
    kind = f"split folders {', '.join(labelled)}" if splits else "class folders"
    return Layout(image_files, classes, kind, tuple(notes), depth)


def _subfolders(names: Sequence[str], above: str = "") -> list[str]:
    """The names of the folders directly below the folder `above` (with / at its end), sorted."""
    below = (name[len(above) :] for name in names if name.startswith(above))
    return sorted({name.split("/", 1)[0] for name in below if "/" in name})


def _folders_inside(names: Sequence[str]) -> dict[str, list[str]]:
    """A folder (with / at its end; the top is empty) → the names of the folders in it; sorted."""
    inside: dict[str, set[str]] = defaultdict(set)
    for folder in {name.rpartition("/")[0] for name in names}:
        parts = folder.split("/") if folder else []
        for depth, part in enumerate(parts):
            inside["".join(f"{above}/" for above in parts[:depth])].add(part)
    return {above: sorted(inside[above]) for above in sorted(inside)}


def _top_folder(names: Sequence[str]) -> str:
    """The one top folder whose subfolders hold all images, with / at its end, as in some zips; empty if none."""
    tops = _subfolders(names)
    if len(tops) != 1 or split_of(tops[0]) or labels.NAME in names:
        return ""
    top = f"{tops[0]}/"
    direct = [name for name in names if name.removeprefix(top).count("/") == 0]
    is_holder = f"{top}{labels.NAME}" in names or (_subfolders(names, top) and not any(map(looks_like_image, direct)))
    return top if is_holder else ""


def _top_splits(where: str, tops: Sequence[str]) -> dict[str, str]:
    """Top folder → its split, if the top folders are splits, in the order train, val, test; empty if none is.

    Raises UserError if a split is there twice, or is beside a class folder.
    """
    found = splits_of(tops)
    splits = {top: split for split in SPLITS for top in tops if found.get(top) == split}
    classes = [top for top in tops if top not in splits]
    if len(set(splits.values())) < len(splits):
        value, remedy = f"folders {' and '.join(splits)}", "merge the folders that mean the same"
        allowed = f"one folder for each of {', '.join(SPLITS)}"
        raise UserError(Fault(where, value, "pair", "two spellings of one split", allowed, remedy))
    if splits and classes:
        first = ", ".join(classes[:5]) + (", …" if len(classes) > 5 else "")
        value = f"{', '.join(splits)} beside class folders {first}"
        remedy = f"move or remove one of the two, or rename a class, such as to {next(iter(splits))}_class"
        raise UserError(Fault(where, value, "pair", allowed="only splits or only classes", remedy=remedy))
    return splits


def _without_train(where: str, splits: dict[str, str]) -> Fault:
    """The fault of split folders of which none is a train folder with class folders."""
    if train := next((name for name, split in splits.items() if split == "train"), ""):
        allowed = f"{train}/<class>/ with the images of each class, or beside {train}/ {TABLE}"
        return Fault(where, f"{train}/ has no class folder", "missing", "", allowed)
    allowed = (
        "train with val, test or both (this split is kept, and a missing part is cut from train), "
        "or class folders at the top (the split is made)"
    )
    return Fault(where, f"folders {' and '.join(splits)}, but no train", "missing", allowed=allowed)


def _check_classes(where: str, names: Sequence[str], classes: Sequence[str]) -> None:
    """Raise UserError for fewer than two classes, and for folders that are no classes."""
    for name in filter(split_of, classes):  # the folders have one level too many
        value, remedy = f"class folder {name!r}", "remove the extra level of folders, or rename the class"
        raise UserError(Fault(where, value, "value", "it has the name of a split", "any other name", remedy))
    for above, inner in _folders_inside(names).items():
        splits = splits_of(inner) if above else {}
        if len(set(splits.values())) > 1:
            value, allowed = f"folders {in_words([above + name for name in splits])}", "the class below the split"
            remedy = f"move them, such as {above}{min(splits)} to {min(splits)}/{above.rstrip('/')}"
            raise UserError(Fault(where, value, "value", "splits below a class", allowed, remedy))
        pair = [next((name for name in inner if kind.fullmatch(name.lower())), "") for kind in (IMAGES, BOXES)]
        if all(pair):
            value = f"folders {' and '.join(above + name for name in pair)}"
            reason = "a layout for object detection or segmentation"
            allowed = f"one folder per class, with images alone, or {TABLE}"
            raise UserError(Fault(where, value, "value", reason, allowed))
    if len(classes) < 2:
        value = f"only one class folder ({classes[0]!r})" if classes else "no class folder"
        remedy = "if they are inside another folder, move them one level up (in paths.inbox or the archive)"
        if not classes and any(map(looks_like_image, names)):
            remedy = f"if {where} has the images of one class, name the folder above it, which holds all classes"
        allowed = f"at least 2, each with the images of one class, or {TABLE}"
        raise UserError(Fault(where, value, "missing", allowed=allowed, remedy=remedy))
