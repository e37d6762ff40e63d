"""The stage download: images arrive complete or not at all, from an archive, the inbox or the drawing program."""

import shutil
from pathlib import Path

import pytest

from pipeline.base import files
from pipeline.stages import download, weights
from tests.helpers.refusals import refuses
from tests.helpers.sources import archive_project, contents, fill, project

NO_WEIGHTS = {"none.txt": b"No pretrained weights are asked for (train.weights: none).\n"}


def test_real_photos_unpack_and_stay_until_the_next_complete_set(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The archive gives forty photos and their licence, and their number and bytes are printed. A later failure leaves
    them as they are.
    """
    monkeypatch.chdir(tmp_path)
    shutil.copy(archive, tmp_path / "my photos.tgz")
    url = f"file://{tmp_path}/my%20photos.tgz"
    download.run(project(tmp_path, source="archive", url=url, sha256=files.sha256(archive)))
    images = tmp_path / "data" / "images"
    size = sum(len(content) for content in contents(images).values())
    said = capsys.readouterr().out
    assert all(part in said for part in ("41 files", f"{size:,} bytes", url))
    classes = {path.name: len(list(path.iterdir())) for path in images.iterdir() if path.is_dir()}
    assert classes == dict.fromkeys(("daisy", "dandelion", "roses", "sunflowers", "tulips"), 8)
    assert sorted(path.name for path in images.iterdir() if path.is_file()) == ["LICENSE.txt"]

    bad = tmp_path / "bad.tgz"
    bad.write_bytes(archive.read_bytes()[:200_000])
    with refuses(("data.url", "damaged")):
        download.run(archive_project(tmp_path, bad))
    assert len(list(images.rglob("*.jpg"))) == 40
    assert sorted(path.name for path in images.parent.iterdir()) == ["images"]


def test_the_inbox_is_copied_without_junk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class folders with any names are copied as they are, without the files of operating systems."""
    monkeypatch.chdir(tmp_path)
    photos = {'my daisies, "new"/o\'Brien 薔薇.JPG': b"x", "Röschen/b.png": b"y", "LICENSE.txt": b"mine"}
    junk = {".DS_Store": b"", "Röschen/Thumbs.db": b"", "__MACOSX/._b.png": b"", ".gitkeep": b""}
    config = project(tmp_path, source="inbox")
    fill(tmp_path / "data" / "inbox", photos | junk)
    (tmp_path / "data" / "inbox" / "LICENSE.txt").chmod(0o755)
    download.run(config)
    images = tmp_path / "data" / "images"
    assert contents(images) == photos
    assert not any("__MACOSX" in path.name for path in images.rglob("*"))
    assert (images / "LICENSE.txt").stat().st_mode & 0o111 == 0


def test_without_weights_a_note_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage weights writes a note into its folder if none are asked for: DVC warns of an empty folder."""
    monkeypatch.chdir(tmp_path)
    weights.run(project(tmp_path, source="inbox"))
    assert contents(tmp_path / "data" / "weights") == NO_WEIGHTS
