"""One dict, saved and loaded whole: what is under the name is complete, and a damaged one is noticed.

A file is what torch.save writes, followed by its SHA-256: torch.load by itself checks no sum. The one before the newest
is kept beside it.
"""

import hashlib
import io
from pathlib import Path
from typing import IO, Any

import torch

from pipeline.base import files


class Damaged(Exception):
    """A file that is not what was saved."""


def previous(path: Path) -> Path:
    """Where the checkpoint before the newest is."""
    return path.with_name(f"previous-{path.name}")


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `state` beside `path`, make sure it is on the disk, then give it the name; the one that had it is kept."""
    with files.atomic_file(path) as temporary:
        with temporary.open("wb") as file:
            _write(state, file)
        digest = bytes.fromhex(files.sha256(temporary))
        with temporary.open("ab") as file:
            file.write(digest)
        if path.exists():
            path.replace(previous(path))


def _write(state: dict[str, Any], file: IO[bytes]) -> None:
    """torch.save, but what the disk says (full) is raised as it is: torch puts an error of its own in front of it."""
    try:
        torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def load(path: Path) -> dict[str, Any]:
    """The dict saved at `path`, its tensors on the CPU. Loads tensors and plain values only, never code.

    Raises FileNotFoundError, and Damaged for a file that is cut or changed, or that something else wrote.
    """
    try:
        content = path.read_bytes()
    except IsADirectoryError as error:
        raise Damaged(str(path)) from error
    payload, digest = content[:-32], content[-32:]
    if hashlib.sha256(payload).digest() != digest:
        raise Damaged(str(path))
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # whoever wrote it, it was not `save`: any error may come
        raise Damaged(str(path)) from error
    if not isinstance(state, dict):
        raise Damaged(str(path))
    return state


def remove(path: Path) -> None:
    """Remove a checkpoint and the one before it."""
    path.unlink(missing_ok=True)
    previous(path).unlink(missing_ok=True)
