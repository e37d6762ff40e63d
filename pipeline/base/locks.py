"""A lock of a folder, which ends with the process that holds it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.base.errors import Fault, UserError


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
