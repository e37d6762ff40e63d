"""What cannot be an image folder in the inbox is refused by name."""

import os
from pathlib import Path

import pytest

from pipeline.base import files
from pipeline.data.inbox import copy
from tests.helpers.refusals import refuses
from tests.helpers.sources import fill


@pytest.mark.parametrize("there", [None, {}, {".gitkeep": b""}, {"photo.jpg": b"x"}, {"daisy/.hidden": b"x"}])
def test_an_inbox_without_class_folders_is_refused(there: dict[str, bytes] | None, tmp_path: Path) -> None:
    """A missing or empty inbox, or one without class folders, is refused with what to put there."""
    inbox, folder = tmp_path / "inbox", tmp_path / "images"
    folder.mkdir()
    if there is not None:
        inbox.mkdir()
        fill(inbox, there)
    with refuses(("paths.inbox", "missing")):
        copy(inbox, folder)


@pytest.mark.parametrize("target", ["a.jpg", "nowhere.jpg", "../daisy"])
def test_a_link_in_the_inbox_is_refused_by_name(target: str, tmp_path: Path) -> None:
    """A symbolic link to a file, to nothing or to a folder is refused."""
    fill(tmp_path / "inbox", {"daisy/a.jpg": b"x"})
    (tmp_path / "inbox" / "daisy" / "link.jpg").symlink_to(target)
    (tmp_path / "images").mkdir()
    with refuses((tmp_path / "inbox/daisy/link.jpg", "value")):
        copy(tmp_path / "inbox", tmp_path / "images")


def test_what_is_no_file_or_not_utf8_in_the_inbox_is_refused(tmp_path: Path) -> None:
    """A named pipe, and a name that is not UTF-8, are refused by name."""
    daisy = tmp_path / "inbox" / "daisy"
    daisy.mkdir(parents=True)
    for make, name in ((os.mkfifo, "pipe"), (Path.touch, "\udcff.jpg")):
        odd = daisy / name
        make(odd)
        files.remove(tmp_path / "images")
        (tmp_path / "images").mkdir()
        with refuses((ascii(str(odd)) if make is Path.touch else odd, "value")):
            copy(tmp_path / "inbox", tmp_path / "images")
        odd.unlink()
