"""The project's own images, by data/split.csv."""

from pathlib import Path

from pipeline.answers import own_images
from pipeline.base import files
from pipeline.config.params import Params
from pipeline.dataset import split_table
from pipeline.dataset.split_table import ImageRow
from pipeline.sources import originals
from tests.helpers.sources import fill

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
