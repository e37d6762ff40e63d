"""What this process may use of the machine, and system calls for which Python has no function."""

import ctypes
import mmap
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PARENT = "PERENNIAL_PARENT"  # variable: the process id of who starts a process that has to end with it
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
MAP_FIXED = 0x10  # mmap(2)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # mallopt(3)

OWN_GROUPS = Path("/proc/self/cgroup")
# Control groups of the versions 1 and 2, by their controllers in OWN_GROUPS: the folder of all groups, the files with
# the limits of one, and the lines of memory.stat with what the kernel cannot give up.
CONTROL_GROUPS = {
    "memory": (Path("/sys/fs/cgroup/memory"), ("memory.limit_in_bytes",), ("total_rss", "total_shmem")),
    "": (Path("/sys/fs/cgroup"), ("memory.max", "memory.high"), ("anon", "shmem")),
}

SYSTEM = ctypes.CDLL(None, use_errno=True)  # of the functions below, with their types: an address needs 64 bits
SYSTEM.mmap.restype = ctypes.c_void_p
SYSTEM.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
SYSTEM.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def usable_cores() -> int:
    """The number of cores on which this process may run. The machine may have more."""
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """The main memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_limits() -> list[tuple[int, int]]:
    """The limit of each control group of this process that has less memory than the machine, and what it uses of it.

    In bytes, without the cached files, which the kernel gives up. A container has such a limit. Empty if there is none.
    [man 7 cgroups; cgroup-v1/memory.rst and cgroup-v2.rst of the kernel]
    """
    limits = []
    for line in OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if controllers in CONTROL_GROUPS:
            top, files, counted = CONTROL_GROUPS[controllers]
            group = top / path.lstrip("/")
            # In a container the path may be that of the host, whose folders are not there.
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # no group, or no limit
                    texts = [(folder / name).read_text().strip() for name in files]
                    rows = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())
                    used = sum(int(rows.get(name, 0)) for name in counted)
                    limits.append((min(int(text) for text in texts if text != "max"), used))
    return [(most, used) for most, used in limits if most < memory_bytes()]


def available_memory() -> int:
    """The bytes of memory that are still free for this process: of the machine, and of its control groups."""
    import psutil  # not when a command starts

    free: int = psutil.virtual_memory().available
    return min([free, *(max(0, limit - used) for limit, used in memory_limits())])


def map_files(paths: Sequence[Path]) -> "NDArray[np.uint8]":
    """The bytes of files, one file after the other, as one read-only array that is mapped from them.

    Each file but the last has whole pages. Raises OSError if a file cannot be mapped.
    """
    import numpy as np  # not when a command starts

    sizes = [path.stat().st_size for path in paths]
    # It reserves the addresses, and gives them all back at its end. The files replace its pages, which nobody has read.
    array = np.frombuffer(mmap.mmap(-1, sum(sizes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ), np.uint8)
    address = array.ctypes.data
    for path, size in zip(paths, sizes, strict=True):
        with path.open("rb") as file:
            place = SYSTEM.mmap(address, size, mmap.PROT_READ, mmap.MAP_SHARED | MAP_FIXED, file.fileno(), 0)
        if place != address:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        address += size
    return array


def advise(array: "NDArray[np.uint8]", advice: int) -> bool:
    """Tell the system how a contiguous, mapped array will be read: mmap.MADV_… [man 2 madvise]. Whether it listens."""
    start = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    return bool(SYSTEM.madvise(start, array.ctypes.data + array.nbytes - start, advice) == 0)


def die_with(parent: int) -> None:
    """Have the kernel send TERM to this process when its parent (DVC, a launcher) ends, even by SIGKILL.

    If the process `parent` has ended before the kernel was asked, this process has another parent by now, and ends.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of orphans among its descendants, so that it can wait for them, too."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def keep_freed_memory() -> None:
    """Have the C library (glibc) keep freed memory for the next allocation instead of returning it to the system.

    The system clears memory before it gives it out again. Images and training steps free and allocate the same buffers
    repeatedly: clearing them took a tenth of `prepare` and a few percent of `train` on two cores [measured].
    """
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_THRESHOLD, 2**25)  # the largest allowed value; larger blocks come from the system
    library.mallopt(M_TRIM_THRESHOLD, 2**30)


def share_freed_memory() -> None:
    """Have all threads use one heap. Call it before the first thread starts.

    By default the C library has one heap per thread: eight threads that decode large images one after another would
    reserve memory for eight of them.
    """
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def sync(folder: Path) -> None:
    """Write all pending data of the file system of `folder` to its disk (syncfs(2)). Raises OSError if it fails."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)
