"""Folders with the names of splits are a split or an error, and never classes; every name is checked."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.base.errors import UserError
from pipeline.data import folders, inbox, originals
from pipeline.data.layout import Layout, formulas, split_of
from pipeline.data.split_table import SPLITS
from tests.helpers.datasets import do_split, put, splits_by_path, two_classes


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two classes of ten images."""
    return two_classes(tmp_path / "images")


def laid_out(folder: Path, *paths: str) -> Path:
    """Make empty files at these paths; their content is not read."""
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return folder


def in_splits(folder: Path, tops: Sequence[str]) -> Path:
    """Make two classes with one image each below each of these folders."""
    return laid_out(folder, *(f"{top}/{label}/{top}.png" for top in tops for label in ("cat", "dog")))


def layout_of(folder: Path) -> Layout:
    """The layout of a folder, as the stage split reads it."""
    return folders.interpret(str(folder), folders.entries(folder), lambda name: (folder / name).read_bytes())


@pytest.mark.parametrize(
    "tops",
    [
        ("train", "val", "test"),
        ("Training", "Validation", "Testing"),
        ("TRAIN", "valid", "Test"),
        ("training", "dev", "test"),
        ("train", "VALID", "testing"),
    ],
)
def test_a_split_is_understood_in_any_usual_spelling(tmp_path: Path, tops: tuple[str, str, str]) -> None:
    """Each spelling of the three folders gives the right split and the class one level below."""
    layout = layout_of(in_splits(tmp_path, tops))
    classes = layout.classes
    assert classes == ["cat", "dog"]
    assert {(image.path, image.given_split, image.label) for image in layout.image_files} == {
        (f"{top}/{label}/{top}.png", name, label) for top, name in zip(tops, SPLITS, strict=True) for label in classes
    }


@pytest.mark.parametrize(
    ("tops", "said"),
    [
        (("dev", "testing"), "folders dev and testing, but no train; allowed: train with val, test or both"),
        (("Test",), "folders Test, but no train; allowed: train with val, test or both"),
        (("val", "valid"), "folders val and valid: two spellings of one split; allowed"),
        (("train", "val", "validation", "test"), "folders train and val and validation and test: two spellings"),
        (("Train", "train", "val", "test"), "folders Train and train and val and test: two spellings of one split"),
        (("train", "val", "test", "bird"), "train, val, test beside class folders bird; allowed: only splits or only"),
        (("bird", "fish", "test"), "test beside class folders bird, fish; allowed: only splits or only classes"),
        (("a", "b", "c", "d", "e", "f", "Dev"), "Dev beside class folders a, b, c, d, e, …; allowed: only"),
    ],
)  # fmt: skip
def test_half_a_split_is_refused_in_any_spelling(tmp_path: Path, tops: tuple[str, ...], said: str) -> None:
    """A split without train, one that is there twice or is beside classes is refused, with the folders' names."""
    with pytest.raises(UserError) as refusal:
        layout_of(in_splits(tmp_path, tops))
    assert str(refusal.value).startswith(f"{tmp_path}: {said}")


def test_a_class_with_the_name_of_a_split_has_a_remedy(tmp_path: Path) -> None:
    """The message says how to rename the folder; after that, it is a class."""
    folder = laid_out(tmp_path, "cat/0.png", "test/0.png")
    with pytest.raises(UserError, match=r"if a class has this name, rename its folder, such as to test_class"):
        layout_of(folder)
    (folder / "test").rename(folder / "test_class")
    assert layout_of(folder).classes == ["cat", "test_class"]


def test_a_split_with_one_level_too_many_is_refused(tmp_path: Path) -> None:
    """train/train/cat, as some archives unpack, makes no class called train."""
    folder = laid_out(tmp_path, *(f"{name}/{name}/cat/0.png" for name in SPLITS))
    with pytest.raises(UserError, match=r"a class folder has the name of a split, 'test'; .* remove the extra level"):
        layout_of(folder)


def test_names_below_a_class_are_no_splits(tmp_path: Path) -> None:
    """Below a class folder every name is allowed."""
    images = layout_of(laid_out(tmp_path, "cat/train/0.png", "dog/test/val/0.png")).image_files
    assert [(image.label, image.given_split) for image in images] == [("cat", ""), ("dog", "")]


def test_a_pipe_among_the_images_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """In the inbox and in the images folder it is named, with what is allowed."""
    folder = laid_out(tmp_path / "images", "cat/0.png", "dog/0.png")
    os.mkfifo(folder / "cat/1.png")
    with pytest.raises(UserError, match=r"cat/1\.png: neither a file nor a folder \(a link\?\); remove it"):
        layout_of(folder)
    (tmp_path / "out").mkdir()
    with pytest.raises(
        UserError, match=r"cat/1\.png: neither a file nor a folder; allowed: files and folders; remove it"
    ):
        inbox.copy(folder, tmp_path / "out")


def test_too_few_classes_or_images_are_refused(tmp_path: Path) -> None:
    """No folder, no class, one class, and each class with two images are refused by name."""
    folder = tmp_path / "images"
    with pytest.raises(UserError, match="no such folder"):
        do_split(folder)
    folder.mkdir()
    put(folder / "a.png", 0)
    with pytest.raises(UserError, match=r"images: no class folder; needed: at least 2.* name the folder above it"):
        do_split(folder)
    for seed in range(3):
        put(folder / f"cat/{seed}.png", seed)
    with pytest.raises(UserError, match=r"only one class folder \('cat'\); needed: at least 2.*; if .* one level up"):
        do_split(folder)
    (folder / "dog").mkdir()
    with pytest.raises(UserError, match=r"only one class folder \('cat'\); .*an empty folder is no class: 'dog'; put"):
        do_split(folder)
    for seed in range(2):
        put(folder / f"dog/{seed}.png", 100 + seed)
        put(folder / f"emu/{seed}.png", 200 + seed)
    with pytest.raises(UserError, match=r"'dog' has 2 images to use, class 'emu' has 2 .*; needed: at least 3, one"):
        do_split(folder)
    for seed, label in ((102, "dog"), (202, "emu")):
        put(folder / label / "2.png", seed)
    assert set(splits_by_path(do_split(folder)[0]).values()) == set(SPLITS)


@pytest.mark.parametrize(
    ("empty", "names"),
    [
        (("fox", "emu/young"), "'emu', 'fox'"),  # a folder in an empty one is not named
        (("val",), "'val'"),
        (("cat/young",), ""),  # below a class
        (("cat .", "__MACOSX"), "'cat .'"),
    ],
)
def test_an_empty_folder_is_said_and_changes_nothing(small: Path, empty: tuple[str, ...], names: str) -> None:
    """It is no class, and no split: DVC's cache does not keep it. Its name and the remedy are in a note, whether the
    images are copied or read where they are.
    """
    before = layout_of(small)
    for name in empty:
        (small / name).mkdir(parents=True)
    (small.parent / "listed").mkdir()
    originals.write_manifest(small, small.parent / "listed", workers=1)
    source = originals.opened(small.parent / "listed", small)
    for found in (layout_of(small), folders.interpret(str(small), source.entries(), lambda name: b"")):
        assert replace(found, notes=()) == before
        assert [note.partition(": ")[2].partition(";")[0] for note in found.notes] == ([names] if names else [])
        assert all("put images into it, or remove it" in note for note in found.notes)


def test_an_empty_class_is_said_where_classes_are(tmp_path: Path) -> None:
    """Below the folders of splits, and below one folder that holds all."""
    in_splits(tmp_path / "all", ("train", "val", "test"))
    (tmp_path / "all/train/fox").mkdir()
    (tmp_path / "beside").mkdir()
    found = layout_of(tmp_path)
    assert found.classes == ["cat", "dog"]
    assert "'all/train/fox', 'beside'" in found.notes[-1]


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
    laid_out(tmp_path, *(f"{label}/1.png" for label in labels))
    found = layout_of(tmp_path)
    assert found.classes == sorted(labels)
    assert [note.partition(": ")[2].partition("; if they are one class, put")[0] for note in found.notes] == groups
    laid_out(tmp_path, *(f"{number}.png" for number in range(len(labels))))
    rows = [f"{number}.png,{label}" for number, label in enumerate(labels)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    noted = [note for note in layout_of(tmp_path).notes if "one name in labels.csv" in note]
    assert len(noted) == len(groups)


@pytest.mark.parametrize("name", ["=1+2", "+1", "-1", "@home", "\tcat"])
def test_names_that_a_spreadsheet_runs_are_noted(tmp_path: Path, name: str) -> None:
    """A cell of a table would begin with such a name. It stays as it is, and the note has it."""
    laid_out(tmp_path, f"{name}/1.png", "dog/=2.png")
    found = layout_of(tmp_path)
    assert name in found.classes
    (note,) = found.notes
    assert repr(name) in note
    assert not list(formulas(["dog", "dog/=2.png"]))


@pytest.mark.parametrize("tops", [("train", "valid"), ("TRAIN", "Test"), ("Training",)])
def test_a_given_split_may_lack_val_or_test(tmp_path: Path, tops: tuple[str, ...]) -> None:
    """With one spelling of train, the folders that are there are the split, and no class."""
    layout = layout_of(in_splits(tmp_path, tops))
    assert layout.classes == ["cat", "dog"]
    assert {image.given_split for image in layout.image_files} == {split_of(top) for top in tops}


def test_half_a_split_is_refused(tmp_path: Path) -> None:
    """Without train, or with all three folders beside class folders, a split is refused."""
    folder = tmp_path / "images"
    for name in ("val", "test"):
        put(folder / name / "cat/0.png", 0)
    with pytest.raises(UserError, match=r"folders val and test, but no train; allowed: train with val, test or both"):
        do_split(folder)
    put(folder / "train/cat/0.png", 0)
    put(folder / "cat/0.png", 0)
    with pytest.raises(
        UserError, match=r"train, val, test beside class folders cat; allowed: only splits or only classes"
    ):
        do_split(folder)


def test_names_that_cannot_be_written_are_refused(small: Path) -> None:
    """A name that is not UTF-8, one with a carriage return and a broken link are refused by name."""
    bad = Path(str(small / "cat").encode().decode() + "/caf\udce9.png")
    put(bad, 60)
    with pytest.raises(UserError, match=r"caf\\udce9\.png': the name is not UTF-8; rename it"):
        do_split(small)
    bad.rename(small / "cat/a\rb.png")
    with pytest.raises(UserError, match=r"a\\rb\.png': a carriage return in a name"):
        do_split(small)
    (small / "cat/a\rb.png").unlink()
    (small / "cat/link.png").symlink_to("absent.png")
    with pytest.raises(UserError, match=r"link\.png: neither a file nor a folder"):
        do_split(small)


def test_junk_and_files_beside_the_classes_are_no_images(small: Path) -> None:
    """Hidden files, __MACOSX, Thumbs.db and files at the top are ignored."""
    before = do_split(small)
    junk = (".hidden/a.png", "__MACOSX/cat/a.png", "cat/.a.png", "cat/Thumbs.db")
    for name in (*junk, "LICENSE.txt", "README", "a.png"):
        (small / name).parent.mkdir(parents=True, exist_ok=True)
        (small / name).write_text("junk")
    assert do_split(small) == before
