"""Whether a process still lives, and which processes of DVC and of this project work in a folder."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil


def workers(folder: Path) -> list[int]:
    """The IDs of the processes of DVC, and of this project, that work in `folder` or below it, without this one."""
    pids = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it has ended, or is another user's
            words = process.cmdline()
            is_own = is_dvc(words) or is_perennial(words)
            if is_own and process.pid != os.getpid() and Path(process.cwd()).is_relative_to(folder):
                pids.append(process.pid)
    return pids


def is_perennial(words: Sequence[str]) -> bool:
    """Whether the words of a command are those of this program: `python -m pipeline`, or the program `perennial`."""
    names = [Path(word).name for word in words[:2]]
    if names[1:] == ["perennial"] and names[0].startswith("python"):
        return True
    return any(option == "-m" and f"{module}.".startswith("pipeline.") for option, module in pairwise(words))


def is_dvc(words: Sequence[str]) -> bool:
    """Whether the words of a command are those of DVC."""
    return any(path.name == "dvc" or path.parts[-2:] == ("dvc", "__main__.py") for path in map(Path, words))


def lives(pid: int, command: str, moment: float) -> bool:
    """Whether the process still lives that had this PID and this command (sys.argv) at a time.

    A process with this PID that began later, or has another last argument, is another one: in a container, which has
    few PIDs, they are soon used again. If this user may not read them, the process counts as the same.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or began(pid) > moment:
            return False
        return pid == os.getpid() or " ".join(process.cmdline()).endswith(command.rsplit(" ", maxsplit=1)[-1])
    except psutil.AccessDenied:
        return True
    except (psutil.Error, OSError, ValueError):
        return False


def began(pid: int) -> float:
    """When a process began, to 0.01 s: psutil's create_time can be a second too early. Raises OSError without one."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
