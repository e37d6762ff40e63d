"""Folders that are named as the parts of a split are understood or refused, and never classes."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline import download, split
from pipeline.base.errors import UserError


def laid_out(folder: Path, *paths: str) -> Path:
    """A folder with empty files at these paths: what is in them is not looked at."""
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return folder


def in_parts(folder: Path, tops: Sequence[str]) -> Path:
    """Two classes with one image each below every one of these folders."""
    return laid_out(folder, *(f"{top}/{label}/{top}.png" for top in tops for label in ("cat", "dog")))


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
    """Whatever the three folders are called, their images have the part that is meant and the class below it."""
    images, classes = split.find_image_files(in_parts(tmp_path, tops))
    assert classes == ["cat", "dog"]
    assert {(image.path, image.given, image.label) for image in images} == {
        (f"{top}/{label}/{top}.png", part, label)
        for top, part in zip(tops, split.SPLITS, strict=True)
        for label in classes
    }


@pytest.mark.parametrize(
    ("tops", "said"),
    [
        (("train", "valid"), "folders train and valid, but no test; allowed: all of train, val, test"),
        (("TRAIN", "Test"), "folders TRAIN and Test, but no val; "),
        (("dev", "testing"), "folders dev and testing, but no train; "),
        (("train",), "folders train, but no val and no test; "),
        (("val", "valid"), "folders val and valid: one part of a split in two spellings"),
        (("train", "val", "validation", "test"), "folders train and val and validation and test: one part of a split"),
        (("Train", "train", "val", "test"), "folders Train and train and val and test: one part of a split in two"),
        (("train", "val", "test", "bird"), "train, val, test beside class folders bird; allowed: either alone"),
        (("bird", "fish", "test"), "test beside class folders bird, fish; allowed: either alone"),
        (("a", "b", "c", "d", "e", "f", "Dev"), "Dev beside class folders a, b, c, d, e, …; allowed: either alone"),
    ],
)  # fmt: skip
def test_half_a_split_is_refused_in_any_spelling(tmp_path: Path, tops: tuple[str, ...], said: str) -> None:
    """A part that is missing, that is there twice or that stands beside classes is refused, with the folders' names."""
    with pytest.raises(UserError) as refusal:
        split.find_image_files(in_parts(tmp_path, tops))
    assert str(refusal.value).startswith(f"{tmp_path}: {said}")


def test_a_class_called_as_a_part_says_what_to_do(tmp_path: Path) -> None:
    """Who has a class of that name is told to rename its folder, and then it is a class."""
    folder = laid_out(tmp_path, "cat/0.png", "test/0.png")
    with pytest.raises(UserError, match=r"a class that is really called so: rename its folder, such as to test_class"):
        split.find_image_files(folder)
    (folder / "test").rename(folder / "test_class")
    assert split.find_image_files(folder)[1] == ["cat", "test_class"]


def test_a_split_with_one_level_too_many_is_refused(tmp_path: Path) -> None:
    """train/train/cat, as some archives unpack, makes no class called train."""
    folder = laid_out(tmp_path, *(f"{part}/{part}/cat/0.png" for part in split.SPLITS))
    with pytest.raises(
        UserError, match=r"a class folder called 'test', as a part of a split is; .* take out the level"
    ):
        split.find_image_files(folder)


def test_names_inside_a_class_are_no_parts(tmp_path: Path) -> None:
    """Below a class folder any name will do."""
    images, _ = split.find_image_files(laid_out(tmp_path, "cat/train/0.png", "dog/test/val/0.png"))
    assert [(image.label, image.given) for image in images] == [("cat", ""), ("dog", "")]


def test_a_pipe_among_the_images_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """In the inbox and in the folder that split looks through: by name, with what is allowed."""
    folder = laid_out(tmp_path / "images", "cat/0.png", "dog/0.png")
    os.mkfifo(folder / "cat/1.png")
    with pytest.raises(UserError, match=r"cat/1\.png: neither a file nor a folder \(a link\?\); remove it"):
        split.find_image_files(folder)
    (tmp_path / "out").mkdir()
    with pytest.raises(
        UserError, match=r"cat/1\.png: neither a file nor a folder; allowed: files and folders; take it"
    ):
        download.copy(folder, tmp_path / "out")
