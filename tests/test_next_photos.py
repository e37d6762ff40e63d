"""Which photos `predict --next` chooses, and which ones the project has already."""

import random
from pathlib import Path

import pytest

from pipeline.answers import next_photos, own_images
from pipeline.answers.answer import Answer
from pipeline.base import files
from pipeline.config.params import Params
from pipeline.dataset import split_table
from pipeline.dataset.split_table import ImageRow
from pipeline.sources import originals
from tests.helpers.sources import fill

CHANCES = {
    "sure": (0.98, 0.01, 0.01),
    "copy": (0.491, 0.499, 0.01),
    "unsure": (0.495, 0.495, 0.01),
    "unsure of others": (0.01, 0.52, 0.47),
}


def chosen(names: list[str], number: int) -> list[str]:
    """The choice of these images, whose names begin with a key of CHANCES."""
    chances = [dict(zip("abc", CHANCES[name.split("-")[0]], strict=True)) for name in names]
    answers = [Answer(name, name, "a", "", each, "") for name, each in zip(names, chances, strict=True)]
    return [one.path for one in next_photos.to_label(answers, number, Params())]


def test_unsure_photos_that_differ_come_first(here: Path) -> None:
    """A near copy of a chosen photo is less worth than a photo of which the model is sure."""
    assert chosen([*CHANCES], 9) == ["unsure", "unsure of others", "sure", "copy"]
    assert chosen([], 9) == []


def test_the_choice_does_not_depend_on_the_order_of_the_images(here: Path) -> None:
    """Of equal images the first path is chosen, and the others come last."""
    names = [f"{name}-{number}" for name in CHANCES for number in range(3)]
    first = chosen(names, 4)
    assert first[:2] == ["unsure-0", "unsure of others-0"]
    assert len({name.split("-")[0] for name in first}) == 4
    for seed in range(3):
        random.Random(seed).shuffle(names)
        assert chosen(names, 4) == first


def test_images_of_the_project_have_a_label_already(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of every part are left out, and counted."""
    fill(
        Path(),
        {name: name.encode() for name in CHANCES} | {"data/images/a.png": b"unsure", "data/images/b.png": b"copy"},
    )
    rows = [ImageRow("a.png", "x", "test", "", 9, 9), ImageRow("b.png", "x", "train", "", 9, 9)]
    split_table.write(rows, Path("data/split.csv"), Path("data/kept.csv"))
    assert chosen([*CHANCES], 9) == ["unsure of others", "sure"]
    assert "2 of 4 images" in capsys.readouterr().err


FILES = {"rose/a.png": b"first", "rose/b.png": b"second", "tulip/c.png": b"third"}
ROWS = [
    ImageRow("rose/a.png", "tulip", "train", "", 40, 40),
    ImageRow("rose/b.png", "rose", "val", "", 40, 40),
    ImageRow("tulip/c.png", "tulip", "test", "", 40, 40),
]


def test_training_images_are_known_by_their_bytes(here: Path) -> None:
    """Under any name; not those of the same size, nor test images. With a manifest also where the inbox is lost."""
    given = {"x": b"first", "y": b"second", "same size": b"FIRST", "test": b"third", "twice": b"first"}
    fill(Path("given"), given)
    paths = [f"given/{name}" for name in given]
    assert own_images.known(paths, ("train", "val"), Params()) == set()
    fill(Path("data/images"), FILES)
    split_table.write(ROWS, Path("data/split.csv"), Path("data/kept.csv"))
    known = {"given/x", "given/y", "given/twice"}
    assert own_images.known(paths, ("train", "val"), Params()) == known
    Path("data/images").rename("photos")
    Path("data/images").mkdir()
    originals.write_manifest(Path("photos"), Path("data/images"), 1)
    files.remove(Path("photos"))
    assert own_images.known(paths, ("train", "val"), Params()) == known
