"""Calls of the kernel and of the C library that Python has no function for: prctl, mallopt, syncfs."""

import ctypes
import os
import signal
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # mallopt(3)


def die_with_parent() -> None:
    """Have the kernel terminate this process when its parent (DVC, a launcher) ends, however it ends: no orphans."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def adopt_orphans() -> None:
    """Have the kernel give this process the children of those below it that end, so that it can wait for them too."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def keep_freed_memory() -> None:
    """Have the C library (glibc) keep what is freed for what is needed next, instead of giving it back to the system.

    The system clears memory before it lends it again. For the buffers of an image or of a training step, again and
    again, that took a tenth of `prepare` and some hundredths of `train` on two cores [measured].
    """
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_THRESHOLD, 2**25)  # the largest that is allowed; larger pieces come from the system
    library.mallopt(M_TRIM_THRESHOLD, 2**30)


def share_freed_memory() -> None:
    """Have what one thread frees serve the others, too, before any thread is started.

    By itself the C library keeps a heap for every thread: eight threads that decode large images in turn would keep
    the memory of eight.
    """
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def sync(folder: Path) -> None:
    """Have all that was written to the file system of `folder` on its disk (syncfs(2)). Raises OSError if it fails."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)
