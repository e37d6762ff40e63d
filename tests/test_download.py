"""The stage download: images arrive complete or not at all, from an archive, the inbox or the drawing program."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from pipeline.base import files
from pipeline.stages import download, weights
from tests.helpers.refusals import refuses
from tests.helpers.sources import contents, fill, project


def test_real_photos_unpack_and_stay_until_the_next_complete_set(
    archive: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forty photos and their licence: their number and bytes are printed. A later failure leaves them as they are."""
    shutil.copy(archive, "my photos.tgz")
    url = f"file://{here}/my%20photos.tgz"
    download.run(project(here, source="archive", url=url, sha256=files.sha256(archive)))
    unpacked = contents(here / "data/images")
    said = capsys.readouterr().out
    assert all(part in said for part in ("41 files", f"{sum(map(len, unpacked.values())):,} bytes", url))
    classes = Counter(name.split("/")[0] for name in unpacked)
    assert classes == dict.fromkeys(("daisy", "dandelion", "roses", "sunflowers", "tulips"), 8) | {"LICENSE.txt": 1}
    (bad := here / "bad.tgz").write_bytes(archive.read_bytes()[:200_000])
    with refuses(("data.url", "damaged")):
        download.run(project(here, source="archive", url=f"file://{bad}", sha256=files.sha256(bad)))
    assert contents(here / "data/images") == unpacked
    assert sorted(path.name for path in (here / "data").iterdir()) == ["images"]


def test_the_inbox_is_copied_without_junk(here: Path) -> None:
    """Class folders with any names are copied as they are, without the files of operating systems."""
    photos = {'my daisies, "new"/o\'Brien 薔薇.JPG': b"x", "Röschen/b.png": b"y", "LICENSE.txt": b"mine"}
    junk = {".DS_Store": b"", "Röschen/Thumbs.db": b"", "__MACOSX/._b.png": b"", ".gitkeep": b""}
    fill(here / "data/inbox", photos | junk)
    (here / "data/inbox/LICENSE.txt").chmod(0o755)
    download.run(project(here, source="inbox"))
    assert contents(here / "data/images") == photos
    assert not [*here.glob("data/images/**/*__MACOSX*")]
    assert (here / "data/images/LICENSE.txt").stat().st_mode & 0o111 == 0


def test_without_weights_a_note_says_so(here: Path) -> None:
    """The stage weights writes a note into its folder if none are asked for: DVC warns of an empty folder."""
    weights.run(project(here, source="inbox"))
    assert list(contents(here / "data/weights")) == ["none.txt"]
