"""The packed images: one per row of kept.csv, with the same bytes for any number of threads."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.harness.workspace import STAGE_TABLES
from pipeline.base import files
from pipeline.config.params import Prepare
from pipeline.data import images
from pipeline.dataset import packed, split_table
from pipeline.sources.originals import Originals
from pipeline.stages import prepare
from tests.helpers.datasets import do_split
from tests.helpers.refusals import refuses
from tests.helpers.settings import keys

SIZE = 32


def write_split(folder: Path, **changes: Any) -> None:
    """Write split.csv and kept.csv of the images in `folder`/images, with these settings of the split."""
    rows, _ = do_split(folder / "images", **changes)
    split_table.write(rows, folder / "split.csv", folder / "kept.csv")


@pytest.fixture(scope="module")
def packable(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder with the real photos in `images` and the tables of their split."""
    folder = tmp_path_factory.mktemp("packable")
    (folder / "images").symlink_to(photos)
    write_split(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project folder with two classes of six images, one broken, and the tables of their split."""
    noise = np.random.default_rng(0)
    for label in ("b", "a"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for n in range(6):
            content = noise.integers(0, 256, (20 + n, 30, 3), np.uint8)
            Image.fromarray(content).save(tmp_path / "images" / label / f"{n}.png")
    (tmp_path / "images/a/0 broken.png").write_text("words")
    write_split(tmp_path)
    return tmp_path


def do_prepare(folder: Path, output: Path, workers: int = 2, size: int = SIZE) -> bytes:
    """Run prepare; all bytes of its output."""
    prepare.prepare(Originals(folder / "images", {}), folder / "kept.csv", output, Prepare(size=size), workers)
    return content(output)


def content(output: Path) -> bytes:
    """All bytes of a packed folder."""
    names = sorted(path.name for path in output.iterdir())
    assert names == ["digest.json", "images-00000.bin", "images.sha256"]
    return b"".join((output / name).read_bytes() for name in names)


def test_the_number_of_workers_changes_no_byte(packable: Path, tmp_path: Path) -> None:
    """One thread and five pack the real photos into the same bytes."""
    assert do_prepare(packable, tmp_path / "1", 1) == do_prepare(packable, tmp_path / "5", 5)


def check_packed(data: packed.Packed, folder: Path) -> None:
    """Image i belongs to the i-th packed row of split.csv: its class, size, split and pixels."""
    lines = [line for line in files.read_csv(folder / "split.csv") if line["path"] in set(data.paths)]
    assert data.paths == tuple(line["path"] for line in lines)
    assert list(data.splits) == [line["split"] for line in lines]
    assert data.classes == tuple(sorted({line["class"] for line in lines if line["split"]}))
    for row, line in enumerate(lines):
        assert not line["split"] or data.classes[data.labels[row]] == line["class"]
        assert data.sizes[row].tolist() == [int(line["width"]), int(line["height"])]
        assert (data.images[row] == images.square_and_size(folder / "images" / line["path"], SIZE)[0]).all()
    for name in split_table.SPLITS:
        assert data.rows(name).tolist() == [row for row, line in enumerate(lines) if line["split"] == name]


def test_images_are_in_the_order_of_the_table(folder: Path, tmp_path: Path) -> None:
    """And they cannot be changed."""
    do_prepare(folder, tmp_path / "packed")
    data = packed.load(tmp_path / "packed", folder / "split.csv")
    assert data.images.shape == (12, SIZE, SIZE, 3)
    assert (str(data.labels.dtype), str(data.sizes.dtype)) == ("int64", "int32")
    assert data.sizes[:6].tolist() == [[30, 20 + n] for n in range(6)]
    with pytest.raises(ValueError, match="read-only"):
        data.images[0] = 0
    check_packed(data, folder)


SETTINGS = [
    {"fold": 3}, {"seed": 1}, {"folds": 1, "val": 0.3, "test": 0.2}, {"stratify": True}, {"train_share": 0.5},
    {"leave_out": "a"},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: str([*settings]))
def test_another_split_has_the_same_packed_images(folder: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    """kept.csv has the same bytes. Each used image keeps its place, and one that is not used is in no split."""
    (folder / "images/c").mkdir()
    for n, path in enumerate(sorted((folder / "images/b").iterdir())):
        Image.open(path).rotate(180).save(folder / f"images/c/{n}.png")
    write_split(folder)
    before, kept = (folder / "split.csv").read_bytes(), (folder / "kept.csv").read_bytes()
    do_prepare(folder, tmp_path / "packed")
    write_split(folder, **settings)
    assert (folder / "kept.csv").read_bytes() == kept
    assert (folder / "split.csv").read_bytes() != before
    data = packed.load(tmp_path / "packed", folder / "split.csv")
    assert len(data.paths) == 18
    assert all(data.splits) == ("leave_out" not in settings and "train_share" not in settings)
    assert data.classes == (("b", "c") if "leave_out" in settings else ("a", "b", "c"))
    check_packed(data, folder)


def test_another_split_packs_no_image_again() -> None:
    """Of the split, prepare reads kept.csv alone, and none of its settings."""
    assert {*STAGE_TABLES["prepare"]["deps"]} & {*STAGE_TABLES["split"]["outs"]} == {"data/kept.csv"}
    assert keys("prepare") == {"prepare", "prepare.size"}


def test_the_digest_is_that_of_all_pixels(folder: Path, tmp_path: Path) -> None:
    """digest.json has the SHA-256 of images.sha256, which has that of each image; a shard has nothing but pixels."""
    do_prepare(folder, tmp_path / "packed")
    data = packed.load(tmp_path / "packed", folder / "split.csv")
    assert (tmp_path / "packed/images-00000.bin").read_bytes() == data.images.tobytes()
    hashes = (tmp_path / "packed/images.sha256").read_bytes()
    assert hashes == b"".join(hashlib.sha256(image.tobytes()).digest() for image in data.images)
    digest = json.loads((tmp_path / "packed/digest.json").read_text())
    assert digest == {"sha256": hashlib.sha256(hashes).hexdigest(), "images": 12, "size": SIZE}
    assert data.digest == digest["sha256"]


@pytest.mark.parametrize("size", [16, 32, 33, 224, 256, 336, 1000, 1008, 1024])
def test_a_shard_has_whole_pages(size: int) -> None:
    """Of 64 KiB, the largest ones that a system maps; and 64 MB at most, where the size of an image allows it."""
    length = packed.shard_images(size) * 3 * size**2
    assert length % 2**16 == 0
    assert size % 64 or 0.7 < length / packed.SHARD_BYTES <= 1


def test_packed_images_of_another_size_or_fit_than_the_params_say_are_refused(folder: Path, tmp_path: Path) -> None:
    """The right ones are accepted. A split.csv with another number of used rows is refused."""
    do_prepare(folder, tmp_path / "packed")
    data = packed.load(tmp_path / "packed", folder / "split.csv")
    packed.check_settings(data, Prepare(size=SIZE))
    for key, settings in {"size": Prepare(size=80), "fit": Prepare(size=SIZE, fit="squash")}.items():
        with refuses((f"prepare.{key}", "differs")):
            packed.check_settings(data, settings)
    lines = (folder / "split.csv").read_text().splitlines(keepends=True)
    (tmp_path / "other.csv").write_text("".join(lines[:-1]))
    with refuses((tmp_path / "packed/digest.json", "differs")):
        packed.load(tmp_path / "packed", tmp_path / "other.csv")


def test_a_missing_image_is_refused_and_the_earlier_output_stays(folder: Path, tmp_path: Path) -> None:
    """An image that is missing since the split is named; the earlier packed images are not changed."""
    before = do_prepare(folder, tmp_path / "packed")
    (folder / "images/b/3.png").unlink()
    with refuses((folder / "images/b/3.png", "missing")):
        do_prepare(folder, tmp_path / "packed")
    assert content(tmp_path / "packed") == before
    assert not files.partial(tmp_path / "packed").exists()


def test_what_split_keeps_is_packed(folder: Path, tmp_path: Path) -> None:
    """Also an image in a file that is longer than 8 bytes per pixel and 64 MB: one with many pages."""
    before = do_prepare(folder, tmp_path / "packed")
    os.truncate(folder / "images/b/3.png", 2**26 + 10_000)
    write_split(folder)
    assert do_prepare(folder, tmp_path / "packed") == before


def test_the_bits_of_a_square_are_these(tmp_path: Path) -> None:
    """If a release of Pillow resizes differently, every packed image changes, and this hash shows it."""
    noise = np.random.default_rng(0).integers(0, 256, (75, 100, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    image, _ = images.square_and_size(tmp_path / "a.png", 40)
    expected = "96e01e1adb88f3c8035bd3fee11d7d5c916ce99a8c1e8b26ae9e3c0fe726f6fe"
    assert hashlib.sha256(image.tobytes()).hexdigest() == expected
