"""What all stages share: read the params, refuse what cannot run, and end in one line instead of a traceback."""

import ctypes
import errno
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pipeline import machine, params, validity
from pipeline.errors import Refusal, Stopped
from pipeline.params import Params

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
STOPPED = 75  # exit status: saved, run again to go on (EX_TEMPFAIL of sysexits.h)
STOPPED_NOTE = "PERENNIAL_STOPPED_NOTE"  # the launcher's file for saying so: see `main`


def die_with_parent() -> None:
    """Have the kernel terminate this process when its parent (DVC, a launcher) ends, however it ends: no orphans."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def adopt_orphans() -> None:
    """Have the kernel give this process the children of those below it that end, so that it can wait for them too."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def keep_freed_memory() -> None:
    """Have the C library (glibc) keep what is freed for what is needed next, instead of giving it back to the system.

    The system clears memory before it lends it again. For the buffers of a picture or of a training step, again and
    again, that took a tenth of `prepare` and some hundredths of `train` on two cores [measured].
    """
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_THRESHOLD, 2**25)  # the largest that is allowed; larger pieces come from the system
    library.mallopt(M_TRIM_THRESHOLD, 2**30)


def workers(config: Params) -> int:
    """How many threads decode pictures: `run.workers`, or one a core."""
    return config.run.workers or len(os.sched_getaffinity(0))


def checked() -> Params:
    """The params of this folder. Raises Refusal if they cannot run on this machine."""
    config = params.load()
    if found := validity.faults(config, machine.read()):
        raise Refusal("\n".join(found))
    return config


def main(name: str, work: Callable[[Params], None]) -> int:
    """Run one stage's work on the checked params; returns the exit status.

    That is 0, or 1 for what the user can mend, 75 if it was stopped and can go on, 130 if it was interrupted. A process
    of a launcher that was stopped leaves a note and returns 0: a launcher must not take it for a failure, and restart.
    """
    die_with_parent()
    keep_freed_memory()
    note = os.environ.get(STOPPED_NOTE)
    try:
        work(checked())
        if note:  # of the processes before, which torchrun stopped because a node joined
            Path(note).unlink(missing_ok=True)
    except Refusal as refusal:
        print(*(f"{name}: {line}" for line in str(refusal).splitlines()), sep="\n", file=sys.stderr)
        return 1
    except Stopped as stopped:
        if note:
            Path(note).write_text(str(stopped))
            return 0
        print(f"{name}: {stopped}", file=sys.stderr)
        return STOPPED
    except OSError as error:
        if error.errno not in DISK:
            raise
        print(f"{name}: {disk(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted; nothing half-done is left; run again to go on", file=sys.stderr)
        return 130
    finally:
        gc.freeze()  # what is left is no garbage; else Python looks for some for two seconds [measured] before it ends
    return 0


def disk(error: OSError) -> str:
    """An error of DISK, a disk that is full or may not be written to, in one line."""
    where = Path(os.fsdecode(error.filename)) if error.filename else Path.cwd()
    folder = next(parent for parent in [where, *where.absolute().parents] if parent.is_dir())
    free = shutil.disk_usage(folder).free / 1e6
    return f"{where}: {error.strerror} ({free:,.0f} MB free there); make room or give write access, then run again"
