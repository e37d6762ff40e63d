"""A dict of tensors in one file, written atomically. A damaged file is detected when it is loaded.

The file has the bytes of torch.save, then their SHA-256, because torch.load checks no checksum. The checkpoint before
the newest is kept beside it.
"""

import hashlib
import io
from pathlib import Path
from typing import IO, Any

import torch

from pipeline.base import files


class DamagedError(Exception):
    """The content of the file is not what `save` wrote."""


def previous(path: Path) -> Path:
    """The path of the checkpoint before the newest."""
    return path.with_name(f"previous-{path.name}")


class _HashingWriter(io.BufferedWriter):
    """A file that computes the SHA-256 of its bytes while they are written."""

    def __init__(self, raw: io.RawIOBase) -> None:
        super().__init__(raw)
        self.sha256 = hashlib.sha256()

    def write(self, content: Any) -> int:
        self.sha256.update(content)
        return super().write(content)


def save(path: Path, state: dict[str, Any], keep_previous: bool = True) -> None:
    """Write `state` to `path` atomically, and sync it to the disk. The previous file is kept under another name."""
    with files.atomic_file(path) as temporary:
        with _HashingWriter(temporary.open("wb", buffering=0)) as file:
            _write(state, file)
            file.write(file.sha256.digest())
        if keep_previous and path.exists():
            path.replace(previous(path))


def _write(state: dict[str, Any], file: IO[bytes]) -> None:
    """torch.save, but an OSError such as a full disk is raised itself: torch raises a RuntimeError instead."""
    try:
        torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def load(path: Path) -> dict[str, Any]:
    """The dict saved at `path`, its tensors on the CPU. Loads tensors and plain values only, never code.

    Raises FileNotFoundError, and DamagedError for a file that was cut or changed, or that another program wrote.
    """
    try:
        content = path.read_bytes()
    except IsADirectoryError as error:
        raise DamagedError(str(path)) from error
    payload, digest = content[:-32], content[-32:]
    if hashlib.sha256(payload).digest() != digest:
        raise DamagedError(str(path))
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # another program wrote it, so any error is possible
        raise DamagedError(str(path)) from error
    if not isinstance(state, dict):
        raise DamagedError(str(path))
    return state


def remove(path: Path) -> None:
    """Remove a checkpoint and the one before it."""
    path.unlink(missing_ok=True)
    previous(path).unlink(missing_ok=True)
