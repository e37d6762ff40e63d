"""Damage to files, and edits that a test makes in them."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.base import files

Damage = Callable[[Path], object]


def overwrite(path: Path, content: bytes = b"") -> None:
    """Write into the file itself, also if it is read-only, linked or mapped."""
    mode = path.stat().st_mode
    path.chmod(0o644)
    path.write_bytes(content)
    path.chmod(mode)


def flip(path: Path, at: int = -1) -> None:
    """Flip one bit. The file keeps its size and its time."""
    facts, content = path.stat(), bytearray(path.read_bytes())
    content[at] ^= 1
    overwrite(path, bytes(content))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def cut(path: Path) -> None:
    """Leave the first half."""
    overwrite(path, path.read_bytes()[: path.stat().st_size // 2])


def put(**keys: Any) -> Damage:
    """Puts keys into a JSON file; None removes a key."""

    def change(path: Path, keys: dict[str, Any]) -> None:
        content = {**json.loads(path.read_text()), **keys}
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return partial(change, keys=keys)


def swap(old: str, new: str) -> Damage:
    """Replaces a text, which is there, wherever it is."""

    def change(path: Path, old: str, new: str) -> None:
        text = path.read_text()
        assert old in text
        files.write_text(path, text.replace(old, new))

    return partial(change, old=old, new=new)


def edited(name: str, old: str, new: str) -> Damage:
    """`swap` in a file of a folder."""
    return lambda folder: swap(old, new)(folder / name)
