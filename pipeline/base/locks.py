"""Locks of a folder. The kernel frees them at the end of the process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.base.errors import Fault, UserError


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Inside the block no other process is in such a block for this folder. Waits until the other one is out of it.

    The lock is on the folder itself, so it adds no file. Raises OSError if the file system has no locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def hold(folder: Path, activity: str) -> Iterator[None]:
    """Inside the block this process holds the lock of the folder. The kernel frees the lock of a dead process.

    `activity` is what this process does ("is training this run"), for the message of another process that wants the
    lock. Raises UserError if another process holds it, and OSError, with the file's name, if the file system has no
    locks: a plain file instead of a lock would stay after the process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    holder, lock = folder / "holder", FileLock(folder / "lock", timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        process = holder.read_text(encoding="utf-8").strip() if holder.exists() else "unknown"
        remedy = "wait for it, or end it, then run again"
        raise UserError(Fault(str(folder), f"process {process}", "busy", remedy=remedy)) from None
    except OSError as error:
        error.filename = error.filename or str(folder / "lock")
        raise
    try:
        holder.write_text(f"{os.getpid()} {activity}\n", encoding="utf-8")
        yield
    finally:
        lock.release()
