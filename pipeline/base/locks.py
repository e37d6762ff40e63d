"""A lock of a folder, which ends with the process that holds it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.base.errors import Fault, UserError


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Inside the block no other process is in such a block for this folder. Waits until the other one has left it.

    It locks the folder itself, so no file is left there. Raises OSError if the file system has no locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def held(folder: Path, doing: str) -> Iterator[None]:
    """Inside the block this process holds the lock of the folder. The kernel frees the lock of a dead process.

    `doing` says what this process does ("is training this run"), to others that want the lock. Raises UserError if
    another process holds it, and OSError, with the file's name, if the file system has no locks: a plain file instead
    of a lock would outlive the process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    holder, lock = folder / "holder", FileLock(folder / "lock", timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        other = holder.read_text(encoding="utf-8").strip() if holder.exists() else "unknown"
        remedy = "wait for it, or end it, then run again"
        raise UserError(Fault(str(folder), f"process {other}", "busy", remedy=remedy)) from None
    except OSError as error:
        error.filename = error.filename or str(folder / "lock")
        raise
    try:
        holder.write_text(f"{os.getpid()} {doing}\n", encoding="utf-8")
        yield
    finally:
        lock.release()
