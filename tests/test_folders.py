"""Folders with the names of splits are a split and never classes; classes that may be one are named."""

from pathlib import Path

import pytest

from pipeline.data import folders
from pipeline.dataset.split_table import SPLITS
from pipeline.sources import originals
from pipeline.sources.layout import Layout


def layout_of(*names: str) -> Layout:
    """The layout of a folder with these files."""
    return folders.interpret("images", sorted(names), lambda _: b"")


@pytest.mark.parametrize(
    ("tops", "parts"),
    [
        (("training", "dev", "testing"), SPLITS), (("TRAIN", "VALID", "Test"), SPLITS),
        (("train", "validation"), ("train", "val")), (("Training",), ("train",)),
        (("training_set", "test_set"), ("train", "test")), (("train2017", "val2017"), ("train", "val")),
        (("TrainImages", "ValidImages", "TestImages"), SPLITS), (("seg_train", "seg_test"), ("train", "test")),
        (("flowers-train", "flowers-val", "flowers-test"), SPLITS), (("训练集", "验证集", "测试集"), SPLITS),
    ],
)  # fmt: skip
def test_a_split_is_understood_in_any_usual_spelling(tops: tuple[str, ...], parts: tuple[str, ...]) -> None:
    """Each spelling gives the right split, and the class one level below. Val or test may be missing."""
    layout = layout_of(*(f"{top}/{label}/1.png" for top in tops for label in ("cat", "dog")))
    assert layout.classes == ["cat", "dog"]
    assert {(image.path, image.given_split, image.label) for image in layout.image_files} == {
        (f"{top}/{label}/1.png", part, label) for top, part in zip(tops, parts, strict=True) for label in layout.classes
    }


def test_a_class_with_a_word_of_a_split_stays_a_class() -> None:
    """Other words that are not the same beside each word of a split name things."""
    names = ["bullet train", "crash_test", "dev_board", "test_tube", "train_station", "trainer", "val_board"]
    names += ["with_mask", "without_mask"]
    layout = layout_of(*(f"{name}/1.png" for name in names))
    assert (layout.classes, {file.given_split for file in layout.image_files}) == (names, {""})


def test_an_empty_folder_is_no_class(tmp_path: Path) -> None:
    """Also where images stay in place: neither Git nor DVC's cache keeps it."""
    for name in ("cat/1.png", "dog/2.png", "fox/young/3.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True)
        (tmp_path / "photos" / name).touch()
    (tmp_path / "photos/fox/young/3.png").unlink()
    originals.write_manifest(tmp_path / "photos", tmp_path, workers=1)
    listed = originals.list_entries(tmp_path / "photos")
    assert listed == originals.locate(tmp_path, tmp_path / "photos").entries()
    assert layout_of(*listed) == layout_of("cat/1.png", "dog/2.png")


@pytest.mark.parametrize(
    ("labels", "groups"),
    [
        (("Roses", "roses", "roses ", "tulips"), ["'Roses', 'roses', 'roses '"]),
        (("cafe\u0301", "caf\u00e9", "x"), [r"'cafe\u0301', 'café'"]),  # look the same
        (("A", "B", "a", "b"), ["'A', 'a'", "'B', 'b'"]),
        (("rose", "roses", "ro ses"), []),
    ],
)
def test_classes_that_differ_in_case_or_blanks_are_named(labels: tuple[str, ...], groups: list[str]) -> None:
    """They stay classes, and each group of them is in a note with the remedy."""
    layout = layout_of(*(f"{label}/1.png" for label in labels))
    assert layout.classes == sorted(labels)
    assert [note.partition(": ")[2].partition("; ")[0] for note in layout.notes] == groups
