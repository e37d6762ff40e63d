"""The three nearest training photos beside each mistake of the report."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.base import files
from pipeline.dataset import feature_file, split_table
from pipeline.dataset.split_table import ImageRow
from pipeline.reporting import gallery, nearest
from pipeline.stages import report
from tests.conftest import set_params
from tests.helpers import reports
from tests.helpers.pages import parsed

SPLITS = ("train", "train", "train", "train", "val", "test")


def world(folder: Path, per_class: int = 24, size: int = 64) -> tuple[list[ImageRow], NDArray[np.float32]]:
    """Rows of split.csv whose features are around the direction of their class, and the features, also in a file."""
    random = np.random.default_rng(0)
    rows, features = [ImageRow("none.txt", reason="empty")], []
    for number, label in enumerate(("daisy", "roses", "tulips")):
        for k in range(per_class):
            rows.append(ImageRow(f"{label}/{k:02}.jpg", label, SPLITS[k % len(SPLITS)]))
            features.append(np.eye(3, size)[number] * 4 + random.uniform(0, 0.5, size))
    array = np.array(features, np.float32)
    np.save(folder / feature_file.FILE, array)
    return rows, array


def test_a_wrong_label_has_photos_of_the_true_class_beside_it(tmp_path: Path) -> None:
    """A test photo of roses that is labelled daisy, however bright; one with the right label has its own class."""
    rows, features = world(tmp_path)
    wrong = 24 + 5  # of the features; a test image
    features[wrong] *= 7
    np.save(tmp_path / feature_file.FILE, features)
    rows[wrong + 1] = rows[wrong + 1]._replace(label="daisy")
    paths = ["roses/05.jpg", "tulips/11.jpg"]
    found = nearest.photos(tmp_path, rows, paths)
    assert list(found) == paths
    assert [[row.label for row in some] for some in found.values()] == [["roses"] * 3, ["tulips"] * 3]
    assert {row.split for some in found.values() for row in some} == {"train"}


def test_equally_near_photos_are_in_the_order_of_their_paths(tmp_path: Path) -> None:
    """Whatever the order of the table; a nearer photo is before them, and features that are all 0 are far from all."""
    rows = [ImageRow(f"a/{k:02}.jpg", "a", "train") for k in reversed(range(40))] + [ImageRow("a/x.jpg", "a", "test")]
    features = np.array([[k, k] for k in range(40)] + [[1, 2]], np.float32)
    for nearer, expected in (((0, 1), (0, 1, 2)), ((3, 6.1), (20, 0, 1))):
        features[19] = nearer
        np.save(tmp_path / feature_file.FILE, features)
        (found,) = nearest.photos(tmp_path, rows, ["a/x.jpg"]).values()
        assert [row.path for row in found] == [f"a/{k:02}.jpg" for k in expected]


@pytest.mark.parametrize("at_once", [1, 7])
def test_the_order_of_additions_changes_no_answer(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of very different size, added in another order and in other parts: the same photos, and the same bits."""
    random = np.random.default_rng(1)
    features = (random.normal(size=(60, 1280)) * 10.0 ** random.integers(-6, 6, (60, 1))).astype(np.float32)
    of, among = range(10), range(10, 60)
    expected, bits = nearest.nearest(features, of, among), nearest._directions(features)
    order = random.permutation(1280)
    monkeypatch.setattr(nearest, "AT_ONCE", at_once)
    assert np.array_equal(nearest.nearest(features[:, order], of, among), expected)
    assert np.array_equal(nearest._directions(features[:, order]), bits[:, order])
    assert np.array_equal(bits, np.rint(bits))


def test_the_report_shows_them_below_each_mistake(
    reported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three pictures and their classes, where the head is solved on a frozen backbone; twice the same bytes."""
    monkeypatch.setattr(gallery, "MOST_ANSWERS", 2)
    folder = shutil.copytree(reported, tmp_path / "project", symlinks=True)
    rows = split_table.packed_rows(folder / "data/split.csv")
    (folder / "data/features").mkdir()
    features = np.random.default_rng(0).uniform(0, 1, (len(rows), 16)).astype(np.float32)
    np.save(folder / "data/features" / feature_file.FILE, features)
    page = folder / "reports/index.html"
    report.run(reports.config_in(folder))
    assert "nearest training photos" not in page.read_text()  # gradients have trained the backbone
    set_params(folder, train__head="solved", train__freeze_backbone=True)
    report.run(reports.config_in(folder))
    first = page.read_bytes()
    set_params(folder, run__workers=3)
    report.run(reports.config_in(folder))
    assert page.read_bytes() == first
    predictions = {row["path"]: row for row in files.read_csv(folder / "metrics/predictions.csv")}
    shots = parsed(first.decode()).one(id="images").all("figure")
    mistakes = [shot for shot in shots if "data-path" in shot.attributes]
    assert len(mistakes) == 2
    for shot in mistakes:
        path = shot.attributes["data-path"]
        assert path in predictions
        (expected,) = nearest.photos(folder / "data/features", rows, [path]).values()
        pictures = shot.one(class_="nearest").all("img")
        assert [picture.attributes["alt"] for picture in pictures] == [f"\u2068{row.path}\u2069" for row in expected]
        assert all(picture.attributes["src"].startswith("data:image/jpeg") for picture in pictures)
        assert f"nearest training photos: {', '.join(row.label for row in expected)}" in shot.text
