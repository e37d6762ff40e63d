"""Folders with the names of splits are a split and never classes; what the names may hide is said."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.data import folders
from pipeline.dataset.split_table import SPLITS
from pipeline.sources import originals
from pipeline.sources.layout import Layout


def layout_of(*names: str) -> Layout:
    """The layout of a folder with these files, or folders where a name ends with a slash."""
    return folders.interpret("images", sorted(names), lambda _: b"")


def touch(folder: Path, *names: str) -> Path:
    """Make empty files at these paths, and empty folders where a name ends with a slash."""
    for name in names:
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()
    return folder


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


@pytest.mark.parametrize(
    ("empty", "names"),
    [
        (("fox/", "emu/young/"), "'emu', 'fox'"), (("val/",), "'val'"), (("cat ./", "__MACOSX/"), "'cat .'"),
        (("cat/young/",), ""),  # below a class
    ],
)  # fmt: skip
def test_an_empty_folder_is_said_and_changes_nothing(tmp_path: Path, empty: tuple[str, ...], names: str) -> None:
    """It is no class, and no split: DVC's cache does not keep it. A note has it, also where images stay in place."""
    photos = touch(tmp_path / "photos", "cat/1.png", "dog/2.png", *empty)
    originals.write_manifest(photos, tmp_path, workers=1)
    for entries in (originals.list_entries(photos), originals.locate(tmp_path, photos).entries()):
        layout = layout_of(*entries)
        assert replace(layout, notes=()) == layout_of("cat/1.png", "dog/2.png")
        assert [note.partition(": ")[2].partition(";")[0] for note in layout.notes] == ([names] if names else [])


def test_an_empty_class_is_said_where_classes_are(tmp_path: Path) -> None:
    """Below the folders of splits, and below one folder that holds all."""
    images = [f"all/{top}/{label}/1.png" for top in SPLITS for label in ("cat", "dog")]
    layout = layout_of(*originals.list_entries(touch(tmp_path, *images, "all/train/fox/", "beside/")))
    assert layout.classes == ["cat", "dog"]
    assert "'all/train/fox', 'beside'" in layout.notes[-1]


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


def test_folders_of_systems_in_an_old_list_are_counted() -> None:
    """A list of files that an earlier version wrote has them; they are no class, and none of their images is used."""
    layout = layout_of("#recycle/3.png", "@eaDir/cat/1.png", "cat/1.png", "cat/@eaDir/1.png/THUMB.png", "dog/2.png")
    assert (layout.classes, [file.path for file in layout.image_files]) == (["cat", "dog"], ["cat/1.png", "dog/2.png"])
    assert [note.partition(" ")[0] for note in layout.notes] == ["3"]


@pytest.mark.parametrize("name", ["=1+2", "+1", "-1", "@home", "\tcat"])
def test_names_that_a_spreadsheet_runs_are_noted(name: str) -> None:
    """A cell of a table would begin with such a name. It stays as it is, and the note has it."""
    (note,) = layout_of(f"{name}/1.png", "dog/=2.png").notes
    assert repr(name) in note
    assert not layout_of("cat/1.png", "dog/=2.png").notes
