"""What a killed DVC leaves: a lock of its own that nobody holds, and a cut dvc.lock. And whether a DVC still works.

DVC rewrites dvc.lock and its rwlock in place: a DVC that is killed while it writes leaves them cut. The rwlock also
keeps its PID. The next `dvc repro` then refuses to start as long as any process has that PID. In a container, which has
few PIDs, that is likely.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil

from pipeline.versioning import dvc_lock

RWLOCK = Path(".dvc/tmp/rwlock")


def works(folder: Path) -> bool:
    """Whether a DVC process works in `folder` or below it. True if this user may not read a process's folder."""
    for process in psutil.process_iter():
        try:
            if is_dvc(process.cmdline()) and Path(process.cwd()).is_relative_to(folder):
                return True
        except psutil.AccessDenied:
            return True
        except (psutil.Error, OSError):  # the process has ended
            continue
    return False


def workers(folder: Path) -> list[int]:
    """The IDs of the processes of DVC, and of this project, that work in `folder` or below it."""
    pids = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it has ended, or is another user's
            words = process.cmdline()
            is_own = is_dvc(words) or is_perennial(words)
            if is_own and process.pid != os.getpid() and Path(process.cwd()).is_relative_to(folder):
                pids.append(process.pid)
    return pids


def is_perennial(words: Sequence[str]) -> bool:
    """Whether the words of a command are those of this program."""
    return any(option == "-m" and f"{module}.".startswith("pipeline.") for option, module in pairwise(words))


def is_dvc(words: Sequence[str]) -> bool:
    """Whether the words of a command are those of DVC."""
    return any(path.name == "dvc" or path.parts[-2:] == ("dvc", "__main__.py") for path in map(Path, words))


def repair() -> list[str]:
    """Repair the files that a killed DVC left in this folder. Returns what was done, one sentence each.

    While another DVC works here, nothing is changed: it may be writing these files.
    """
    fault = _rwlock_fault()
    is_cut = dvc_lock.is_cut()
    if not (fault or is_cut) or works(Path.cwd()):
        return []
    messages = []
    if fault:
        RWLOCK.unlink(missing_ok=True)
        messages.append(f"{RWLOCK} {fault}, and no DVC is running here: removed")
    if is_cut:
        messages.append(f"{dvc_lock.LOCK} was cut by a killed DVC: {dvc_lock.restore()}")
    return messages


def _rwlock_fault() -> str:
    """What is wrong with the rwlock, if no DVC works here; empty if it is missing, locks nothing, or a holder lives."""
    if not RWLOCK.is_file():
        return ""
    try:
        mtime, locks = RWLOCK.stat().st_mtime, json.loads(RWLOCK.read_bytes())
        groups = [group for kind in ("read", "write") for group in locks.get(kind, {}).values()]
        holders = [holder for group in groups for holder in (group if isinstance(group, list) else [group])]
        lives = any(_lives(int(holder["pid"]), str(holder["cmd"]), mtime) for holder in holders)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return "was left unreadable by a killed DVC"
    return "was left locked by a killed DVC" if holders and not lives else ""


def _lives(pid: int, command: str, mtime: float) -> bool:
    """Whether the process still lives that wrote its PID and command (sys.argv) into a file at the time `mtime`.

    A process with this PID that began later, or has other arguments, is another one. If this user may not read them,
    the process counts as the same.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or process.create_time() > mtime:
            return False
        arguments = command.partition(" ")[2]
        return not arguments or " ".join(process.cmdline()).endswith(f" {arguments}")
    except psutil.AccessDenied:
        return True
    except (psutil.Error, OSError, ValueError):
        return False
