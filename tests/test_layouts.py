"""Folders as people have them end as stated: understood, with what was done, or refused by name."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.base.errors import Kind
from pipeline.data import split_report
from pipeline.dataset.split_table import SPLITS
from pipeline.sources import originals
from pipeline.sources.originals import Originals
from pipeline.stages import split
from tests.helpers.datasets import put, settings
from tests.helpers.refusals import refuses

Files = dict[str, str | None]  # path → text; None: an image


@dataclass(frozen=True)
class Case:
    """A layout, and how it ends."""

    name: str
    files: Files
    parts: tuple[int, int, int] = (0, 0, 0)  # images in train, val and test; none if it is refused
    says: tuple[str, ...] = ()  # in what `split` prints
    faults: tuple[tuple[str, Kind], ...] = ()  # key and kind of each fault


def images(*folders: str, number: int = 10) -> Files:
    """So many images in each of these folders."""
    return {f"{folder}/{i:02}.png": None for folder in folders for i in range(number)}


def both(*tops: str, number: int = 10) -> Files:
    """So many images of each of two classes in each of these folders."""
    return images(*(f"{top}/{label}" for top in tops for label in ("cat", "dog")), number=number)


def table(*lines: str, name: str = "labels.csv") -> Files:
    """A table with these lines."""
    return {name: "\n".join(lines) + "\n"}


def labels_of(folder: str, end: str = "", number: int = 10) -> list[str]:
    """Lines of a table: so many images of each of two classes in one folder."""
    return [f"{folder}{i:02}.png,{'cat' if i < number else 'dog'}{end}" for i in range(2 * number)]


FLAT = images("photos", number=20)
CASES = (
    Case("class folders", both("."), (12, 3, 5), ("layout: class folders",)),
    Case("class folders with subfolders (ImageFolder)", images("cat/a", "cat/b/c", "dog") | {"LICENSE.txt": "mine"},
         (22, 3, 5), ("layout: class folders",)),
    Case("train, val, test", both("train", number=5) | both("val", "test", number=2), (10, 4, 4), ("layout: split",)),
    Case("train, val (ImageFolder)", both("train") | both("val", number=2), (15, 4, 5),
         ("(5 test)",)),
    Case("train, test (CIFAR as PNG)", both("train", "test"), (17, 3, 20),
         ("(3 val)",)),
    Case("Roboflow, folders",
         both("train", number=5) | both("valid", "test", number=2)
         | dict.fromkeys(("README.roboflow.txt", "README.dataset.txt", "train/README.md"), ""),
         (10, 4, 4), ("layout: split folders train, valid, test",)),
    Case("YOLO", images("images", "labels"), faults=(("images", "value"),)),
    Case("Pascal VOC", images("JPEGImages", "SegmentationClass") | {"Annotations/00.xml": "<annotation/>"},
         faults=(("images", "value"),)),
    Case("photos and masks of each class", images("cat/images", "cat/masks", "dog/images", "dog/masks"),
         faults=(("images", "value"),)),
    Case("Kaggle, unlabelled test", both("train") | images("test", number=7) | {"sample_submission.csv": "id,label\n"},
         (12, 3, 5),
         ("7 images", "(first: test/00.png)")),
    Case("Kaggle, one folder and train.csv", images("train", number=20) | table("id,label", "00,cat", name="train.csv"),
         faults=(("images", "missing"),)),
    Case("one folder above (a zip)", both("dataset/train") | both("dataset/valid", number=2) | {"dataset/README": ""},
         (15, 4, 5), ("'dataset'", "layout: split folders train, valid")),
    Case("junk of systems",
         both(".") | dict.fromkeys(("__MACOSX/cat/._0.png", ".DS_Store", "cat/Thumbs.db", "dog/desktop.ini"), "junk")
         | dict.fromkeys(("@eaDir/cat/1.png", "#recycle/a.png", "$RECYCLE.BIN/b.png", "cat/@eaDir/1.png/THUMB.png")),
         (12, 3, 5), ("layout: class folders",)),
    Case("images beside class folders", both(".") | {"a.jpg": None, "b.png": None}, (12, 3, 5),
         ("(first: a.jpg)",)),
    Case("splits in splits", both("train/train", "train/test"), faults=(("images", "value"),)),
    Case("Intel scenes, each split twice", both("seg_train/seg_train", "seg_test/seg_test"),
         faults=(("images", "value"),)),
    Case("a split below each class", images("cat/train", "cat/test", "dog/train", "dog/test"),
         faults=(("images", "value"),)),
    Case("val, test without train", both("val", "test"), faults=(("images", "missing"),)),
    Case("two spellings of one split", both("train", "val", "valid"), faults=(("images", "pair"),)),
    Case("split and class folders", both("train") | images("cat"), faults=(("images", "pair"),)),
    Case("one class", images("cat"), faults=(("images", "missing"),)),
    Case("images at the top", images("."), faults=(("paths.inbox", "missing"),)),
    Case("labels.csv",
         FLAT | table("\ufeffLabel,path", *(",".join(line.split(",")[::-1]) for line in labels_of("photos/"))),
         (12, 3, 5), ("layout: labels.csv",)),
    Case("labels.csv, some given",
         FLAT | images("held")
         | table("path,label,split", *labels_of("photos\\", ","), *labels_of("held/", ",Testing", number=5)),
         (17, 3, 10), ("17 train, 3 val",)),
    Case("labels.csv, groups",
         FLAT | table("path,label,group", *(f"{line},{n // 2}" for n, line in enumerate(labels_of("photos/")))),
         (12, 4, 4), ("groups: 10",)),
)  # fmt: skip


def write(files: Files, folder: Path) -> None:
    """Write these files below a folder; no two images are alike."""
    for seed, (path, text) in enumerate(files.items()):
        if text is None:
            put(folder / path, seed)
        else:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_layout_ends_as_stated(case: Case, tmp_path: Path) -> None:
    """Through the inbox and the split: the images of each split, the classes, and what the user is told."""
    write(case.files, tmp_path / "inbox")
    (tmp_path / "images").mkdir()

    def copy_and_split() -> split.Result:
        originals.copy_inbox(tmp_path / "inbox", tmp_path / "images")
        return split.split(Originals(tmp_path / "images", {}), settings(), 2)

    if case.faults:
        with refuses(*((key.replace("images", f"{tmp_path}/images"), kind) for key, kind in case.faults)):
            copy_and_split()
        return
    rows, _, counts, layout = copy_and_split()
    assert tuple(sum(row.split == name for row in rows) for name in SPLITS) == case.parts
    assert list(counts["classes"]) == ["cat", "dog"]
    excluded = [(row.reason, row.path) for row in rows if row.reason]
    text = "\n".join(split_report.lines(layout, counts, excluded))
    for words in case.says:
        assert words in text
