"""The layout of a data set: the class of each image, and its split and group if they are given.

folders.py reads it from folders, labels.py from a table.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from pipeline.base.text import in_words, visible

SPELLINGS = {  # usual names of the splits, in lower case → the split
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
    "训练": "train", "验证": "val", "测试": "test",
}  # fmt: skip
# What people add to the name of a split: training_set, train2017, TestImages, seg_train. No entry begins another one,
# and none is made of others, so a match takes no long time.
_ADDED = r"(?:[\W\d_]|sets?|data|images?|imgs?|photos?|pictures?|pics?|files?|folders?|split|seg|cls|raw|jpe?g|png|集)*"
_SPLIT = re.compile(f"{_ADDED}({'|'.join(SPELLINGS)}){_ADDED}")
# The usual endings of image files, for messages and for the top folder. The content decides whether a file is an image.
SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm",
    ".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".dcm",
})  # fmt: skip


@dataclass(frozen=True)
class ImageFile:
    """A file with a class."""

    path: str  # relative to paths.images, with /
    label: str  # the class
    given_split: str  # train, val or test; empty if the layout gives none for it
    group: str = ""  # from the table labels.csv; empty if it gives none


@dataclass(frozen=True)
class Layout:
    """The images of a data set."""

    image_files: list[ImageFile]  # sorted by path, as UTF-8 bytes
    classes: list[str]  # sorted
    kind: str  # how the files were understood, in a few words
    notes: tuple[str, ...] = ()  # what the user may not expect, one sentence each
    class_depth: int | None = 0  # the level of the class folder in a path: 0 is the top


def split_of(name: str) -> str:
    """The split that a name stands for, alone or with words that say nothing of a class; empty if none."""
    match = _SPLIT.fullmatch(name.lower())
    return SPELLINGS[match[1]] if match else ""


def splits_of(names: Iterable[str]) -> dict[str, str]:
    """Name → its split, for the names that stand for one: each by itself, or several with the same other words.

    So `flowers_train` and `flowers_test` are splits, and `bullet_train` alone is none.
    """
    splits = {name: split for name in names if (split := split_of(name))}
    by_rest: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for name in names:
        words = re.split(r"[\W_]+", name.lower())
        if len(found := [word for word in words if word in SPELLINGS]) == 1:
            by_rest[tuple(word for word in words if word not in found)][name] = SPELLINGS[found[0]]
    for same_rest in by_rest.values():
        splits |= same_rest if {"train"} < {*same_rest.values()} else {}
    return splits


def looks_like_image(path: str) -> bool:
    """Whether a path has the usual ending of an image file."""
    return PurePosixPath(path).suffix.lower() in SUFFIXES


def unused_images_note(paths: list[str], why: str) -> list[str]:
    """A list of one note that these images are not used, with their number and the first; empty without images."""
    if not paths:
        return []
    return [f"{count_with_verb(len(paths), 'image', 'images')} not used: {why} (first: {visible(paths[0])})"]


def similar_class_notes(classes: Sequence[str], remedy: str) -> Iterator[str]:
    """A note for each group of classes whose names differ only in capitals, blanks, or the encoding of accents."""
    by_normal_form: dict[str, list[str]] = defaultdict(list)
    for label in classes:
        folded = unicodedata.normalize("NFC", label).casefold()
        by_normal_form[unicodedata.normalize("NFC", folded).strip()].append(label)
    for group in by_normal_form.values():
        if len(group) > 1:
            names = [repr(label) if unicodedata.is_normalized("NFC", label) else ascii(label) for label in group]
            yield (
                f"these are {len(group)} classes, and differ only in case, blanks or accents: {in_words(names)}; if "
                f"they are one class, {remedy}"
            )


def count_with_verb(count: int, singular: str, plural: str) -> str:
    """The begin of a sentence about a number of things: `1 image is`, `1,200 images are`."""
    return f"1 {singular} is" if count == 1 else f"{count:,} {plural} are"
