"""What cannot be an image folder in the inbox is refused by name."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.data.originals import copy_inbox
from tests.helpers.refusals import refuses
from tests.helpers.sources import fill


@pytest.mark.parametrize("content", [None, {}, {".gitkeep": b""}, {"photo.jpg": b"x"}, {"daisy/.hidden": b"x"}])
def test_an_inbox_without_class_folders_is_refused(content: dict[str, bytes] | None, tmp_path: Path) -> None:
    """A missing or empty inbox, or one without class folders, is refused with what to put there."""
    inbox, folder = tmp_path / "inbox", tmp_path / "images"
    folder.mkdir()
    if content is not None:
        inbox.mkdir()
        fill(inbox, content)
    with refuses(("paths.inbox", "missing")):
        copy_inbox(inbox, folder)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("link.jpg", lambda path: path.symlink_to("a.jpg")),
        ("link.jpg", lambda path: path.symlink_to("nowhere.jpg")),
        ("link.jpg", lambda path: path.symlink_to("../daisy")),
        ("pipe", os.mkfifo),
        ("\udcff.jpg", Path.touch),
    ],
)
def test_what_cannot_be_copied_is_refused_by_name(name: str, make: Callable[[Path], object], tmp_path: Path) -> None:
    """A link to a file, to nothing or to a folder, a pipe that nobody writes into, and a name that is not UTF-8."""
    fill(tmp_path / "inbox", {"daisy/a.jpg": b"x"})
    odd = tmp_path / "inbox/daisy" / name
    make(odd)
    (tmp_path / "images").mkdir()
    with refuses((odd if name.isascii() else ascii(str(odd)), "value")):
        copy_inbox(tmp_path / "inbox", tmp_path / "images")
