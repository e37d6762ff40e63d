"""The synthetic flowers: the same on any machine, all different, and not separable by colour alone."""

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from pipeline.base import files
from pipeline.sources import synthetic


def hashes(folder: Path) -> dict[str, str]:
    """Relative path → SHA-256 of every file below a folder."""
    return {str(path.relative_to(folder)): files.sha256(path) for path in folder.rglob("*") if path.is_file()}


def draw(folder: Path, count: int = 50, size: int = 32, seed: int = 0, workers: int = 2) -> dict[str, str]:
    """Draw images into a new folder; their hashes."""
    folder.mkdir()
    synthetic.draw(folder, count, size, seed, workers)
    return hashes(folder)


def test_kinds_have_equally_many_images(tmp_path: Path) -> None:
    """Each kind has the same number of images, the first kinds have one more, and the licence is beside them."""
    names = draw(tmp_path / "a", count=52)
    sizes = {kind: sum(name.startswith(f"{kind}/{kind}_") for name in names) for kind in synthetic.KINDS}
    assert sizes == {"aster": 11, "clematis": 11, "cosmos": 10, "periwinkle": 10, "poppy": 10}
    assert set(names) >= {"aster/aster_00001.png", "aster/aster_00011.png", "LICENSE.txt"}
    assert len(names) == 53
    assert "CC0" in (tmp_path / "a" / "LICENSE.txt").read_text()


def test_the_seed_decides_the_bytes_and_the_workers_do_not(tmp_path: Path) -> None:
    """A seed gives the same files for any number of workers; another seed gives other images. A larger number only
    adds files."""
    one, three, other = (
        draw(tmp_path / name, seed=seed, workers=workers)
        for name, seed, workers in (("one", 0, 1), ("three", 0, 3), ("other", 1, 3))
    )
    assert one == three
    assert one.items() <= draw(tmp_path / "many", count=63).items()
    assert {name for name in one if one[name] == other[name]} == {"LICENSE.txt"}


def test_the_pixels_are_the_same_on_every_machine() -> None:
    """One image of each kind has the recorded hash."""
    digest = hashlib.sha256()
    for index, name in enumerate(synthetic.KINDS):
        image = synthetic.image(name, 96, 7, index)
        digest.update(repr(image.size).encode() + image.tobytes())
    assert digest.hexdigest() == "278629adbc280a481afe3ab758b1c57444764b1b99a7f0745ee973933d71b4b4"


def test_colours_alone_do_not_separate_the_kinds(tmp_path: Path) -> None:
    """A linear classifier of 8 × 8 mean colours has an accuracy above chance (0.2) and below 0.6."""
    draw(tmp_path / "a", count=300, size=64)
    paths = sorted((tmp_path / "a").rglob("*.png"))
    colours = [np.asarray(Image.open(path).resize((8, 8), Image.Resampling.BOX)).ravel() for path in paths]
    labels = [path.parent.name for path in paths]
    features = StandardScaler().fit_transform(np.stack(colours).astype(float))
    model = LogisticRegression(C=0.01, max_iter=2000)
    model.fit(features[::2], labels[::2])
    assert 0.25 < model.score(features[1::2], labels[1::2]) < 0.6
