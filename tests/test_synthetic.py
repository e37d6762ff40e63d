"""The synthetic flowers: the same on any machine, all different, and not separable by colour alone."""

import hashlib
from collections import Counter
from pathlib import Path

from pipeline.sources import synthetic
from tests.helpers.sources import contents


def draw(folder: Path, count: int = 12, seed: int = 0, workers: int = 2) -> dict[str, bytes]:
    """Draw images into a new folder; its files."""
    folder.mkdir()
    synthetic.draw(folder, count, 32, seed, workers)
    return contents(folder)


def test_the_seed_decides_the_bytes_and_the_workers_do_not(tmp_path: Path) -> None:
    """For any number of workers. A larger number only adds files. Each kind has as many images, the first one more."""
    one, three = draw(tmp_path / "one", workers=1), draw(tmp_path / "three", workers=3)
    assert one == three
    assert one.items() <= draw(tmp_path / "many", count=16).items()
    other = draw(tmp_path / "other", seed=1)
    assert {name for name in one if one[name] == other[name]} == {"LICENSE.txt"}
    kinds = Counter(name.split("/")[0] for name in one)
    assert kinds == {"aster": 3, "clematis": 3, "cosmos": 2, "periwinkle": 2, "poppy": 2, "LICENSE.txt": 1}
    assert {"aster/aster_00001.png", "aster/aster_00003.png"} <= set(one)
    assert "CC0" in (tmp_path / "one/LICENSE.txt").read_text()


def test_the_pixels_are_the_same_on_every_machine() -> None:
    """One image of each kind has the recorded hash."""
    digest = hashlib.sha256()
    for index, name in enumerate(synthetic.KINDS):
        image = synthetic.image(name, 96, 7, index)
        digest.update(repr(image.size).encode() + image.tobytes())
    assert digest.hexdigest() == "278629adbc280a481afe3ab758b1c57444764b1b99a7f0745ee973933d71b4b4"
