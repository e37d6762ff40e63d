"""Images of `data.source: folder` stay where they are: a manifest lists them, and a changed file is refused."""

import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.base import files
from pipeline.config import params
from pipeline.data import images
from pipeline.dataset import packed
from pipeline.sources import originals
from pipeline.sources.layout import ImageFile
from pipeline.stages import download, prepare, split
from tests.helpers.refusals import refuses
from tests.helpers.sources import fill, project

PHOTOS = {
    "cats/ä 1.jpg": b"one", "cats/b.jpg": b"two", "dogs/c.jpg": b"three", "LICENSE.txt": b"CC-BY", ".x": b"",
    "cats.dvc": b"",
}  # fmt: skip


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """A folder outside the project."""
    fill(tmp_path / "my photos", PHOTOS)
    (tmp_path / "images").mkdir()
    return tmp_path / "my photos"


def write_and_read(inbox: Path) -> originals.Originals:
    """The manifest of a folder, written and read."""
    originals.write_manifest(inbox, inbox.parent / "images", workers=2)
    return originals.locate(inbox.parent / "images", inbox)


def test_the_manifest_has_every_file_with_its_hash(inbox: Path) -> None:
    """Size and SHA-256 of every file without junk, in the order of paths. Only the licence is copied."""
    source = write_and_read(inbox)
    names = ["LICENSE.txt", "cats/b.jpg", "cats/ä 1.jpg", "dogs/c.jpg"]
    lines = [f"{name},{len(PHOTOS[name])},{files.sha256(inbox / name)}" for name in names]
    assert (inbox.parent / "images/.manifest.csv").read_text().splitlines() == ["path,bytes,sha256", *lines]
    assert sorted(path.name for path in (inbox.parent / "images").iterdir()) == [".manifest.csv", "LICENSE.txt"]
    assert source.entries() == names
    assert source.file("cats/ä 1.jpg") == (inbox / "cats/ä 1.jpg", files.sha256(inbox / "cats/ä 1.jpg"))


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b"new"), Path.unlink], ids=["changed", "removed"])
def test_a_file_that_is_not_as_listed_is_refused(inbox: Path, change: Callable[[Path], object]) -> None:
    """A photo that was changed or removed after download is named; other photos can be read."""
    source = write_and_read(inbox)
    change(inbox / "cats/b.jpg")
    with refuses((inbox / "cats/b.jpg", "differs")):
        source.read("cats/b.jpg")
    assert source.read("dogs/c.jpg") == b"three"


@pytest.mark.parametrize("side", [64, 700], ids=["small", "large"])
@pytest.mark.parametrize("in_place", [False, True], ids=["replaced", "written to"])
@pytest.mark.parametrize("stage", ["split", "prepare"])
def test_the_bytes_that_were_hashed_are_decoded(
    inbox: Path, monkeypatch: pytest.MonkeyPatch, stage: str, in_place: bool, side: int
) -> None:
    """A photo changes right after a stage has opened it: the stage uses the photo of the manifest, or refuses."""
    before, after = (_noise(seed, side) for seed in (0, 1))
    assert (len(before) > images.SMALL_FILE) == (side > 64)
    photo = inbox / "cats/b.png"
    photo.write_bytes(before)
    expected = images.square_and_size(photo, 32)[0], images.inspect_image(photo, 1, 10**6).pixels
    source = write_and_read(inbox)
    table = inbox.parent / "split.csv"
    row = ("cats/b.png", "cats", "train", "", side, side)
    files.write_csv(table, ("path", "class", "split", "reason", "width", "height"), [row])
    settings = project(inbox.parent)
    real = Path.open

    def open_then_change(path: Path, *args: Any, **options: Any) -> Any:
        file = real(path, *args, **options)
        if path == photo:
            monkeypatch.undo()
            if not in_place:
                photo.unlink()
            photo.write_bytes(after)
        return file

    monkeypatch.setattr(Path, "open", open_then_change)
    result: Any = None
    with suppress(originals.Changed):
        if stage == "split":
            result = split.inspect(source, [ImageFile("cats/b.png", "cats", "")], settings.split, 1)[0].pixels
        else:
            prepare.prepare(source, table, inbox.parent / "packed", settings.prepare.model_copy(update={"size": 32}), 1)
            result = packed.load(inbox.parent / "packed", table).images[0]
    if in_place:
        assert result is None
    else:
        assert np.array_equal(result, expected[stage == "split"])


@pytest.mark.parametrize("size", [100, images.SMALL_FILE + 1])
def test_a_changed_file_that_is_no_image_is_refused(inbox: Path, size: int) -> None:
    """A video that took the place of a photo is not counted as a video: the photo is named as changed."""
    (inbox / "cats/b.png").write_bytes(_noise(0, 700))
    source = write_and_read(inbox)
    (inbox / "cats/b.png").write_bytes(b"\0\0\0\x20ftypisom".ljust(size, b"\0"))
    for most_pixels in (1, 10**6):
        with refuses((inbox / "cats/b.png", "differs")):
            images.inspect_image(inbox / "cats/b.png", 1, most_pixels, sha256=source.hashes["cats/b.png"])


def _noise(seed: int, side: int) -> bytes:
    """A PNG of noise: no compression makes it small."""
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)).save(content, "PNG")
    return content.getvalue()


def test_links_are_followed(inbox: Path) -> None:
    """A link to a file or folder is read as what it leads to. A link to a folder above it is refused."""
    fill(inbox.parent / "elsewhere", {"d.jpg": b"four"})
    (inbox / "birds").symlink_to(inbox.parent / "elsewhere")
    (inbox / "dogs/e.jpg").symlink_to(inbox / "cats/b.jpg")
    source = write_and_read(inbox)
    assert {"birds/d.jpg", "dogs/e.jpg"} <= set(source.entries())
    assert source.hashes["dogs/e.jpg"] == source.hashes["cats/b.jpg"]
    (inbox / ".cache").mkdir()
    (inbox / ".cache/again").symlink_to(inbox)  # hidden, so it is not followed
    assert originals.links(inbox) == [inbox / "birds", inbox / "dogs/e.jpg"]
    (inbox / "cats/again").symlink_to(inbox)
    with refuses((inbox / "cats/again", "value")):
        write_and_read(inbox)


def test_a_table_of_the_data_set_is_no_manifest(inbox: Path) -> None:
    """An archive or an inbox may hold a manifest.csv of its own: the images beside it are read."""
    fill(inbox.parent / "copied", {"manifest.csv": b"path,sha256\ncats/b.jpg,0\n", "cats/b.jpg": b"two"})
    source = originals.locate(inbox.parent / "copied", inbox)
    assert source.root == inbox.parent / "copied"
    assert source.entries() == ["cats/b.jpg", "manifest.csv"]


def test_download_lists_and_says_so(inbox: Path, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The stage says how many files stay where, and that DVC does not look into linked folders."""
    config = params.with_values(project(here, source="folder"), {"paths.inbox": str(inbox)})
    (inbox / "birds").symlink_to(inbox / "cats")
    download.run(config)
    stdout = capfd.readouterr().out
    assert f"6 files, {sum(map(len, PHOTOS.values())) + 6} bytes stay in {inbox}; " in stdout
    assert f"({inbox}/birds)" in stdout
