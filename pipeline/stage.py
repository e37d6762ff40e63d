"""What all stages share: read the params, refuse what cannot run, and end in one line instead of a traceback."""

import ctypes
import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path

from pipeline import intact, machine, params, validity
from pipeline.errors import Stopped, UserError, exit_status
from pipeline.params import Params

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # mallopt(3)
STOPPED_NOTE = "PERENNIAL_STOPPED_NOTE"  # the launcher's file for saying so: see `main`


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


def workers(config: Params) -> int:
    """How many threads decode images: `run.workers`, or one a core."""
    return config.run.workers or len(os.sched_getaffinity(0))


def checked() -> Params:
    """The params of this folder. Raises UserError if they cannot run on this machine."""
    config = params.load()
    if found := validity.faults(config, machine.read()):
        raise UserError("\n".join(found))
    return config


def main(name: str, work: Callable[[Params], None]) -> int:
    """Run one stage's work on the checked params; returns the exit status of `errors.exit_status`.

    A process of a launcher that was stopped leaves a note and returns 0: a launcher must not take it for a failure, and
    restart.
    """
    die_with_parent()
    keep_freed_memory()
    note = os.environ.get(STOPPED_NOTE)

    def noted() -> int:
        try:
            config = checked()
            if not note:  # a process of a launcher reads what that has looked at
                intact.check(name, config.paths)
            work(config)
        except Stopped as stopped:
            if not note:
                raise
            Path(note).write_text(str(stopped))
        else:
            if note:  # of the processes before, which torchrun stopped because a node joined
                Path(note).unlink(missing_ok=True)
        return 0

    try:
        return exit_status(name, noted)
    finally:
        gc.freeze()  # what is left is no garbage; else Python looks for some for two seconds [measured] before it ends
