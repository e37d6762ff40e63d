"""How a program ends: in a line instead of a traceback, where the fault is not its own.

UserError and Stopped are shown as they stand. An error of the system (disk, memory, limits) is named with its remedy.
Every command ends in `exit_status`, so all of them end alike. Any other exception is a fault of the program: a
traceback.
"""

import errno
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

STOPPED = 75  # exit status: saved, run again to go on (EX_TEMPFAIL of sysexits.h)
INTERRUPTED = "nothing half-done is left; run again to go on"

SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})
REMEDIES = {
    errno.EIO: "the disk failed, or the way to it; what the system says of it: dmesg; mend that",
    errno.EFBIG: "a file may not be so large here; raise the limit (ulimit -f), or take another file system",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or lower run.workers",
    errno.ENFILE: "raise the system's limit of open files (sysctl fs.file-max), or end other programs",
    errno.EISDIR: "a folder is where a file belongs; move it away",
    errno.ENOTDIR: "a file is where a folder belongs; move it away",
    errno.EEXIST: "a file is where a folder belongs; move it away",
    errno.ENOTEMPTY: "somebody else writes there; end that program",
    errno.ENOENT: "something took it away while it was needed",
    errno.ESTALE: "the network file system lost it; mount that again",
    errno.EAGAIN: "raise the limit of processes (ulimit -u, or a container's pids), or lower run.workers",
    errno.EPIPE: "whoever read it ended before all was written; let it read to the end",
    **dict.fromkeys(
        (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP),
        "this file system has no locks; mount it with them, or put the project elsewhere",
    ),
}
# torch has no class of its own for these; of an extension, the class is known by name alone.
NO_MEMORY = re.compile(
    r"can't allocate memory|cannot allocate memory|not enough memory|bad_alloc|out of memory|can't start new thread"
    r"|failed to map segment|ALLOC_FAILED|unable to mmap",
    re.IGNORECASE,
)
OF_A_GPU = re.compile(r"CUDA|CUBLAS|CUDNN|NCCL", re.IGNORECASE)


class UserError(Exception):
    """What cannot be done as asked. Its text names the key or file, the value, what is allowed, and the remedy."""


class Stopped(Exception):
    """Somebody asked to stop, and what was done so far is saved. Its text says who, where, and how to go on."""


def exit_status(name: str, work: Callable[[], int], interrupted: str = INTERRUPTED) -> int:
    """Do a command's work; returns its exit status. What is no fault of the program is said on stderr, after `name`.

    The status is what `work` returns, or 1 for what the user can mend, 75 if it was stopped and can go on, 130 if it
    was interrupted.
    """
    of_threads: list[str] = []
    before, threading.excepthook = threading.excepthook, partial(_thread_error_hook, name, of_threads)
    status = 1
    try:
        status = work()
        sys.stdout.flush()
        return status
    except UserError as refusal:
        said = str(refusal)
    except Stopped as stopped:
        status, said = STOPPED, str(stopped)
    except KeyboardInterrupt:
        status, said = 130, f"interrupted; {interrupted}"
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        status, said = 1, describe_system_error(error)
        if not said:
            raise
        _give_up_output()
    finally:
        threading.excepthook = before
    if said not in of_threads:
        _say(name, said)
    return status


def _say(name: str, said: str) -> None:
    """Each line on stderr, after the name."""
    with suppress(OSError):  # nobody reads it
        print(*(f"{name}: {line}" for line in said.splitlines()), sep="\n", file=sys.stderr)


def _thread_error_hook(name: str, told: list[str], end: threading.ExceptHookArgs) -> None:
    """Say in a line, too, what ended a thread: a library's own, of which the error may come up again later."""
    said = describe_system_error(end.exc_value) if end.exc_value else ""
    if not said:
        threading.__excepthook__(end)
    elif said not in told:
        told.append(said)
        _say(name, said)


def describe_system_error(error: BaseException) -> str:
    """An error of the disk, of memory or of a limit in one line; nothing if the error is of another kind."""
    if isinstance(error, OSError) and error.errno not in (None, errno.ENOMEM):
        return "; ".join([_describe_file_error(error), *_notes(error)])
    cause: BaseException | None = error
    while cause:  # a library may say of it that something could not be loaded
        said = " ".join(str(cause).split())
        if isinstance(cause, MemoryError) or NO_MEMORY.search(said):
            return _describe_memory_error(said)
        cause = cause.__cause__ or cause.__context__
    return ""


def import_error_hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """As sys.excepthook of a command: print one line if the memory was too small for its imports, else a traceback."""
    said = describe_system_error(error)
    if said:
        _say(Path(sys.argv[0]).stem, said)
    else:
        sys.__excepthook__(kind, error, trace)


def _notes(error: BaseException | None) -> list[str]:
    """What was added to an error, and to those that it came up after: on a failing disk one follows another."""
    return [*getattr(error, "__notes__", []), *_notes(error.__cause__ or error.__context__)] if error else []


def _describe_file_error(error: OSError) -> str:
    """The file, what the system says of it, and the remedy."""
    where = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else Path.cwd()
    if error.errno in SPACE:
        with suppress(OSError):
            folder = next(parent for parent in [where, *where.absolute().parents] if parent.is_dir())
            free = shutil.disk_usage(folder).free / 1e6
            return f"{where}: {error.strerror} ({free:,.0f} MB free there); {_again('make room or give write access')}"
    return f"{where}: {error.strerror}; {_again(REMEDIES.get(error.errno or 0, 'mend that'))}"


def _again(remedy: str) -> str:
    return f"{remedy}, then run again"


def _describe_memory_error(said: str) -> str:
    """Which memory is full, and what takes less of it."""
    if OF_A_GPU.search(said):
        return (
            f"the GPU's memory is full: {said[:200]}; raise train.accumulation_steps, lower train.batch_size or "
            "evaluate.batch_size, set train.gradient_checkpointing: true, or run.residency: host"
        )
    return (
        f"no memory is left: {said[:200] or 'MemoryError'}; lower run.workers, raise train.accumulation_steps, lower "
        "train.batch_size or evaluate.batch_size, set run.residency: disk, or raise the limit (ulimit -v)"
    )


def _give_up_output() -> None:
    """Let nothing that could not be printed (a full disk, a closed pipe) be tried again when Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
