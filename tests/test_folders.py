"""Folders with the names of splits are a split and never classes; what the names may hide is said."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.data import folders
from pipeline.dataset.split_table import SPLITS
from pipeline.sources import originals
from pipeline.sources.layout import Layout


def touch(folder: Path, *paths: str) -> Path:
    """Make empty files at these paths; their content is not read."""
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return folder


def in_splits(folder: Path, tops: Sequence[str]) -> Path:
    """Make two classes with one image each below each of these folders."""
    return touch(folder, *(f"{top}/{label}/{top}.png" for top in tops for label in ("cat", "dog")))


def layout_of(folder: Path) -> Layout:
    """The layout of a folder, as the stage split reads it."""
    return folders.interpret(str(folder), originals.list_entries(folder), lambda name: (folder / name).read_bytes())


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
def test_a_split_is_understood_in_any_usual_spelling(
    tmp_path: Path, tops: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    """Each spelling gives the right split, and the class one level below. Val or test may be missing."""
    layout = layout_of(in_splits(tmp_path, tops))
    assert layout.classes == ["cat", "dog"]
    assert {(image.path, image.given_split, image.label) for image in layout.image_files} == {
        (f"{top}/{label}/{top}.png", part, label)
        for top, part in zip(tops, parts, strict=True)
        for label in layout.classes
    }


def test_a_class_with_a_word_of_a_split_stays_a_class(tmp_path: Path) -> None:
    """Other words that are not the same beside each word of a split name things."""
    names = ["bullet train", "crash_test", "dev_board", "test_tube", "train_station", "trainer", "val_board"]
    names += ["with_mask", "without_mask"]
    layout = layout_of(touch(tmp_path, *(f"{name}/1.png" for name in names)))
    assert (layout.classes, {file.given_split for file in layout.image_files}) == (names, {""})


@pytest.mark.parametrize(
    ("empty", "names"),
    [
        (("fox", "emu/young"), "'emu', 'fox'"), (("val",), "'val'"), (("cat .", "__MACOSX"), "'cat .'"),
        (("cat/young",), ""),  # below a class
    ],
)  # fmt: skip
def test_an_empty_folder_is_said_and_changes_nothing(tmp_path: Path, empty: tuple[str, ...], names: str) -> None:
    """It is no class, and no split: DVC's cache does not keep it. Its name and the remedy are in a note, whether the
    images are copied or read where they are.
    """
    photos = touch(tmp_path / "photos", "cat/1.png", "dog/2.png")
    before = layout_of(photos)
    for name in empty:
        (photos / name).mkdir(parents=True)
    originals.write_manifest(photos, tmp_path, workers=1)
    source = originals.locate(tmp_path, photos)
    for layout in (layout_of(photos), folders.interpret(str(photos), source.entries(), source.read)):
        assert replace(layout, notes=()) == before
        assert [note.partition(": ")[2].partition(";")[0] for note in layout.notes] == ([names] if names else [])


def test_an_empty_class_is_said_where_classes_are(tmp_path: Path) -> None:
    """Below the folders of splits, and below one folder that holds all."""
    in_splits(tmp_path / "all", ("train", "val", "test"))
    (tmp_path / "all/train/fox").mkdir()
    (tmp_path / "beside").mkdir()
    layout = layout_of(tmp_path)
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
def test_classes_that_differ_in_case_or_blanks_are_named(
    tmp_path: Path, labels: tuple[str, ...], groups: list[str]
) -> None:
    """They stay classes, and each group of them is in a note with the remedy."""
    layout = layout_of(touch(tmp_path, *(f"{label}/1.png" for label in labels)))
    assert layout.classes == sorted(labels)
    assert [note.partition(": ")[2].partition("; ")[0] for note in layout.notes] == groups


def test_folders_of_systems_in_an_old_list_are_counted() -> None:
    """A list of files that an earlier version wrote has them; they are no class, and none of their images is used."""
    names = ["#recycle/3.png", "@eaDir/cat/1.png", "cat/1.png", "cat/@eaDir/1.png/THUMB.png", "dog/2.png"]
    layout = folders.interpret("images", names, lambda _: b"")
    assert (layout.classes, [file.path for file in layout.image_files]) == (["cat", "dog"], ["cat/1.png", "dog/2.png"])
    assert [note.partition(" ")[0] for note in layout.notes] == ["3"]


def test_names_that_a_spreadsheet_runs_are_noted() -> None:
    """A cell of a table would begin with such a name. It stays as it is, and the note has it."""

    def notes(label: str) -> tuple[str, ...]:
        return folders.interpret("images", [f"{label}/1.png", "dog/=2.png"], lambda _: b"").notes

    for name in ("=1+2", "+1", "-1", "@home", "\tcat"):
        (note,) = notes(name)
        assert repr(name) in note
    assert not notes("cat")
