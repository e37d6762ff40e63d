"""Folders with the names of splits are a split or an error, and never classes; every name is checked."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.base.errors import Kind
from pipeline.data import folders, originals
from pipeline.data.layout import Layout, formula_notes, split_of
from pipeline.data.split_table import SPLITS
from tests.helpers.datasets import do_split, put, splits_by_path, two_classes
from tests.helpers.refusals import refuses


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two classes of ten images."""
    return two_classes(tmp_path / "images")


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
    "tops",
    [
        ("train", "val", "test"), ("Training", "Validation", "Testing"), ("TRAIN", "valid", "Test"),
        ("training", "dev", "test"), ("train", "VALID", "testing"),
        ("train", "valid"), ("TRAIN", "Test"), ("Training",),
    ],
)  # fmt: skip
def test_a_split_is_understood_in_any_usual_spelling(tmp_path: Path, tops: tuple[str, ...]) -> None:
    """Each spelling gives the right split, and the class one level below. Val or test may be missing."""
    layout = layout_of(in_splits(tmp_path, tops))
    assert layout.classes == ["cat", "dog"]
    parts = SPLITS if len(tops) == 3 else ("train", "test" if "Test" in tops else "val")
    assert {(image.path, image.given_split, image.label) for image in layout.image_files} == {
        (f"{top}/{label}/{top}.png", name, label)
        for top, name in zip(tops, parts, strict=False)
        for label in layout.classes
    }


@pytest.mark.parametrize(
    ("tops", "kind"),
    [
        (("dev", "testing"), "missing"), (("Test",), "missing"), (("one",), "missing"), ((), "missing"),
        (("val", "valid"), "pair"), (("train", "val", "validation", "test"), "pair"),  # two spellings of one split
        (("Train", "train", "val", "test"), "pair"), (("train", "val", "test", "bird"), "pair"),  # beside classes
        (("bird", "fish", "test"), "pair"), (("a", "b", "c", "d", "e", "f", "Dev"), "pair"),
        (("train/train", "val/val", "test/test"), "value"),  # one level too many, as some archives unpack
        (("images", "labels"), "value"),  # of object detection
    ],
)  # fmt: skip
def test_a_layout_that_is_not_understood_is_refused(tmp_path: Path, tops: tuple[str, ...], kind: Kind) -> None:
    """Half a split, a split beside classes, and fewer than two classes: the folder is named."""
    labels = ("cat", "dog") if any(split_of(top.split("/")[0]) for top in tops) else (".",)
    touch(tmp_path, *(f"{top}/{label}/0.png" for top in tops for label in labels))
    with refuses((tmp_path, kind)):
        layout_of(tmp_path)


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    """No folder, and a class with two images: three are enough. A given split has each class in each part."""
    folder = tmp_path / "images"
    with refuses((folder, "missing")):
        do_split(folder)
    for number in range(6):
        put(folder / f"{'cat' if number % 2 else 'dog'}/{number}.png", number)
    (folder / "cat/5.png").rename(folder / "5.png")
    with refuses(("classes", "missing")) as error:
        do_split(folder)
    assert "'cat'" in error.value.faults[0].value
    (folder / "5.png").rename(folder / "cat/5.png")
    assert set(splits_by_path(do_split(folder)[0]).values()) == set(SPLITS)
    for number, name in enumerate(SPLITS):
        put(tmp_path / "given" / name / "cat/0.png", number)
    put(tmp_path / "given/train/dog/0.png", 100)
    with refuses(("classes", "missing")):
        do_split(tmp_path / "given")


@pytest.mark.parametrize(
    ("empty", "names"),
    [
        (("fox", "emu/young"), "'emu', 'fox'"), (("val",), "'val'"), (("cat .", "__MACOSX"), "'cat .'"),
        (("cat/young",), ""),  # below a class
    ],
)  # fmt: skip
def test_an_empty_folder_is_said_and_changes_nothing(small: Path, empty: tuple[str, ...], names: str) -> None:
    """It is no class, and no split: DVC's cache does not keep it. Its name and the remedy are in a note, whether the
    images are copied or read where they are.
    """
    before = layout_of(small)
    for name in empty:
        (small / name).mkdir(parents=True)
    (small.parent / "listed").mkdir()
    originals.write_manifest(small, small.parent / "listed", workers=1)
    source = originals.locate(small.parent / "listed", small)
    for layout in (layout_of(small), folders.interpret(str(small), source.entries(), lambda name: b"")):
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
    """They stay classes, and each group of them is in a note with the remedy; so are those of a table."""
    touch(tmp_path, *(f"{label}/1.png" for label in labels))
    layout = layout_of(tmp_path)
    assert layout.classes == sorted(labels)
    assert [note.partition(": ")[2].partition("; ")[0] for note in layout.notes] == groups
    touch(tmp_path, *(f"{number}.png" for number in range(len(labels))))
    rows = [f"{number}.png,{label}" for number, label in enumerate(labels)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    assert sum("', '" in note for note in layout_of(tmp_path).notes) == len(groups)


@pytest.mark.parametrize("name", ["=1+2", "+1", "-1", "@home", "\tcat"])
def test_names_that_a_spreadsheet_runs_are_noted(tmp_path: Path, name: str) -> None:
    """A cell of a table would begin with such a name. It stays as it is, and the note has it."""
    touch(tmp_path, f"{name}/1.png", "dog/=2.png")
    layout = layout_of(tmp_path)
    assert name in layout.classes
    (note,) = layout.notes
    assert repr(name) in note
    assert not list(formula_notes(["dog", "dog/=2.png"]))


@pytest.mark.parametrize(
    ("name", "form"), [("caf\udce9.png", ascii), ("a\rb.png", repr), ("link.png", str), ("pipe.png", str)]
)
def test_names_that_cannot_be_written_are_refused(small: Path, name: str, form: Callable[[object], str]) -> None:
    """A name that is not UTF-8, one with a carriage return, a broken link, and a pipe: as it can be printed."""
    if name == "pipe.png":  # it is not waited for
        os.mkfifo(small / "cat" / name)
    else:
        (small / "cat" / name).symlink_to("absent.png" if name == "link.png" else "0.png")
    with refuses((form(str(small / "cat" / name)), "value")):
        do_split(small)


def test_junk_and_files_beside_the_classes_are_no_images(small: Path) -> None:
    """Hidden files, __MACOSX, Thumbs.db and files at the top are ignored. Below a class folder each name is allowed."""
    before = do_split(small)
    junk = (".hidden/a.png", "__MACOSX/cat/a.png", "cat/.a.png", "cat/Thumbs.db")
    for name in (*junk, "LICENSE.txt", "README", "a.png"):
        (small / name).parent.mkdir(parents=True, exist_ok=True)
        (small / name).write_text("junk")
    assert do_split(small) == before
    images = layout_of(touch(small.parent / "other", "cat/train/0.png", "dog/test/val/0.png")).image_files
    assert [(image.label, image.given_split) for image in images] == [("cat", ""), ("dog", "")]
