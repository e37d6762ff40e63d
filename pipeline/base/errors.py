"""Errors that end a command with one line instead of a traceback, because they are no bugs.

The texts of UserError and Stopped are printed as they are. An error of the system (disk, memory, limits) is printed
with its remedy. Any other exception is a bug and keeps its traceback. Every command ends in `exit_status`.
"""

import errno
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pipeline.base.text import visible

MOST_SHOWN = 10  # faults in one message
DIFFERENT = 3  # exit status: what was repeated is not equal, or not as good
NOT_HERE = 4  # exit status of verify: this machine cannot run it, or a stage failed
STOPPED = 75  # exit status: saved, run again to go on (EX_TEMPFAIL of sysexits.h)
INTERRUPTED = "no incomplete output is left; run again to go on"

SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})
UNKNOWN = "see the system's messages (dmesg), its limits (ulimit -a) and its space (df)"
# torch has no exception class for these, so the text decides.
NO_MEMORY = re.compile(
    r"can't allocate memory|cannot allocate memory|not enough memory|bad_alloc|out of memory|can't start new thread"
    r"|failed to map segment|ALLOC_FAILED|unable to mmap",
    re.IGNORECASE,
)
GPU_ERROR = re.compile(r"CUDA|CUBLAS|CUDNN|NCCL", re.IGNORECASE)


MERGE = re.compile(rb"<{7} ")  # the begin of a place where Git could not merge

# The part of an address between :// and @, and the part after a question mark: they may contain a password or a token.
# A password may contain a slash, though an address may not: it ends at the last @.
USER = re.compile(r"(?<=://)(?:[^\s/?#]*@|[^\s/?#@:]*:(?!\d*[/?#])[^\s@]*@)")
QUERY = re.compile(r"""((?<=://)[^\s?]*\?|(?<=url: )/[^\s?]*\?)[^\s'";)]+""")


def without_secrets(text: str) -> str:
    """The text without users, passwords and queries in its addresses."""
    return QUERY.sub(r"\1…", USER.sub("…@", text))


Kind = Literal[
    "unknown",  # a key or a name that does not exist
    "value",  # a value that is not allowed
    "pair",  # two values that do not work together
    "machine",  # this machine, or what is installed on it, cannot do it
    "missing",  # a file, a folder or a line is not there
    "damaged",  # the content of a file is not what it has to be
    "differs",  # something is not equal to what it has to equal: a commit, a record, another node
    "busy",  # another process works there
    "failed",  # a program or another process has ended with an error
]


@dataclass(frozen=True)
class Fault:
    """A refused value. As a text it is one line: key, value, reason, allowed values, remedy.

    Raises ValueError for a fault without allowed values and without a remedy.
    """

    key: str  # the dotted name of a setting, an option of a command, or the path of a file
    value: str  # as the user has written it; for a file: the problem
    kind: Kind
    reason: str = ""  # why it is refused, if the value alone does not say it
    allowed: str = ""  # the values that may replace it
    remedy: str = ""  # what the user can do

    def __post_init__(self) -> None:
        if not (self.key and self.value and (self.allowed or self.remedy)):
            raise ValueError(f"a fault needs a key, a value, and what is allowed or a remedy: {self!r}")

    def __str__(self) -> str:
        allowed = self.allowed and f"allowed: {self.allowed}"
        problem = f"{self.key}: {': '.join(filter(None, (self.value, self.reason)))}"
        lines = "; ".join(filter(None, (problem, allowed, self.remedy))).splitlines()
        return visible(" ".join(line.strip() for line in lines))  # a file name with two blanks keeps both


class UserError(Exception):
    """A mistake of the user, or a damaged file. The text has the first faults, and the number of the others."""

    def __init__(self, *faults: Fault) -> None:
        more = [f"… and {len(faults) - MOST_SHOWN:,} more"] if len(faults) > MOST_SHOWN else []
        super().__init__("\n".join([*map(str, faults[:MOST_SHOWN]), *more]))
        self.faults = faults


def raise_if_any(faults: Iterable[Fault]) -> None:
    """Raise UserError with these faults, if there are any."""
    if fault_list := list(faults):
        raise UserError(*fault_list)


def check_folder(key: str, folder: Path) -> None:
    """Raise UserError, about this key, for a folder in which DVC cannot work."""
    if any("\udc80" <= letter <= "\udcff" for letter in str(folder)):  # a byte that is no UTF-8, as Python reads it
        raise UserError(Fault(key, ascii(str(folder)), "value", "DVC needs a path in UTF-8", remedy="rename it"))


def missing(path: Path | str, remedy: str, value: str = "not found") -> UserError:
    """The error for a file or folder that does not exist."""
    return UserError(Fault(str(path), value, "missing", remedy=remedy))


def damaged(path: Path | str, reason: str, remedy: str) -> UserError:
    """The error for a file whose content is not valid. A merge that is not finished has a remedy of its own."""
    with suppress(OSError):
        text = Path(path).read_bytes() if Path(path).is_file() else b""
        if lines := [str(number) for number, line in enumerate(text.split(b"\n"), start=1) if MERGE.match(line)]:
            reason = f"Git could not merge it: <<<<<<< in line {', '.join(lines[:MOST_SHOWN])}"
            remedy = "edit the file: of each such place keep one side; or take back the merge (git merge --abort)"
    return UserError(Fault(str(path), "damaged", "damaged", reason, remedy=remedy))


def one_line(error: Exception) -> str:
    """The text of an error in one line of at most 200 letters, without secrets; the name of its type if it has none."""
    return " ".join(without_secrets(str(error)).split())[:200] or type(error).__name__


class Stopped(Exception):
    """The run was asked to stop, and its work is saved. The text has the signal, the step, and how to go on."""


def exit_status(name: str, work: Callable[[], int], interrupted: str = INTERRUPTED, not_here: int = 1) -> int:
    """Run `work`, a command's main function, and return the exit status. Print errors to stderr, after `name`.

    The status is the result of `work`; 1 for an error that the user can correct, but `not_here` if this machine cannot
    run it, or a stage failed; 75 if the run was stopped and can go on; 130 if it was interrupted. Any other exception
    is raised.
    """
    messages: list[str] = []  # of errors in threads, which are on stderr already
    previous_hook, threading.excepthook = threading.excepthook, partial(_thread_error_hook, name, messages)
    status = 1
    try:
        status = work()
        print(end="", flush=True)  # stdout may be closed
        return status
    except UserError as error:
        message = str(error)
        if error.faults and all(fault.kind in ("machine", "failed") for fault in error.faults):
            status = not_here
    except Stopped as stopped:
        status, message = STOPPED, str(stopped)
    except KeyboardInterrupt:
        status, message = 130, f"interrupted; {interrupted}"
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        status, message = not_here, describe_system_error(error)
        if not message:
            raise
        _give_up_output()
    finally:
        threading.excepthook = previous_hook
    if message not in messages:
        _print(name, message)
    return status


def _print(name: str, message: str) -> None:
    """Print each line of a message to stderr, after the command's name."""
    with suppress(OSError):  # stderr is closed
        print(*(f"{name}: {line}" for line in without_secrets(message).splitlines()), sep="\n", file=sys.stderr)


def _thread_error_hook(name: str, messages: list[str], end: threading.ExceptHookArgs) -> None:
    """As threading.excepthook: print a system error of a thread in one line, once, else a traceback.

    A library's thread may fail, and the library may raise the same error in the main thread later.
    """
    message = describe_system_error(end.exc_value) if end.exc_value else ""
    if not message:
        threading.__excepthook__(end)
    elif message not in messages:
        messages.append(message)
        _print(name, message)


def describe_system_error(error: BaseException) -> str:
    """An error of the disk, of memory or of a limit, in one line; empty for any other error."""
    if isinstance(error, OSError) and error.errno not in (None, errno.ENOMEM):
        return "; ".join([_describe_file_error(error), *_notes(error)])
    cause: BaseException | None = error
    while cause:  # a library may report a lack of memory as an error of loading a file
        text = " ".join(str(cause).split())
        if isinstance(cause, MemoryError) or NO_MEMORY.search(text):
            return _describe_memory_error(text)
        cause = cause.__cause__ or cause.__context__
    return ""


def _notes(error: BaseException | None) -> list[str]:
    """The notes of an error and of its causes: on a failing disk one error follows another."""
    if not error:
        return []
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return [*getattr(error, "__notes__", []), *_notes(before)]


def _describe_file_error(error: OSError) -> str:
    """The file, the system's message, and the remedy."""
    if error.errno == errno.EPIPE:
        return "the program that read the output has ended; run again, with another one or without"
    is_named = isinstance(error.filename, str | bytes)
    where = Path(os.fsdecode(error.filename)) if is_named else Path.cwd()
    place = where if is_named else f"a file that the system does not name (in {where})"
    if error.errno in SPACE:
        with suppress(OSError):
            folder = next(parent for parent in [where, *where.absolute().parents] if parent.is_dir())
            free = shutil.disk_usage(folder).free / 1e6
            free_there = f"({free:,.0f} MB free there)"
            return f"{place}: {error.strerror} {free_there}; make room or give write access, then run again"
    return f"{place}: {error.strerror}; {UNKNOWN}, then run again"


def _describe_memory_error(text: str) -> str:
    """Which memory is full, and the settings that need less. `text` is the message of the error."""
    if GPU_ERROR.search(text):
        return (
            f"the GPU's memory is full: {text[:200]}; raise train.accumulation_steps, lower train.batch_size or "
            "evaluate.batch_size, set train.gradient_checkpointing: true, or run.residency: host"
        )
    return (
        f"no memory is left: {text[:200] or 'MemoryError'}; lower run.workers, raise train.accumulation_steps, lower "
        "train.batch_size or evaluate.batch_size, set run.residency: disk, or raise the limit (ulimit -v)"
    )


def _give_up_output() -> None:
    """Discard output that could not be printed (full disk, closed pipe): Python would try again at its end."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
