"""Which processes of DVC and of this project work in a folder."""

import math
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import psutil


def workers(folder: Path) -> list[int]:
    """The IDs of the processes of DVC, and of this project, that work in `folder` or below it, without this one."""
    return [pid for pid in psutil.pids() if works_in(pid, folder)]


def works_in(pid: int, folder: Path, since: float = math.inf, of_others: bool = False) -> bool:
    """Whether the process with this ID is one of `workers`. `of_others`: the answer if this user may not know.

    `since`: a time at which it worked already. A process that began later is another one: in a container, which has few
    PIDs, they are soon used again.
    """
    try:
        process = psutil.Process(pid)
        words = process.cmdline()
        is_own = (is_dvc(words) or is_perennial(words)) and process.create_time() <= since
        return is_own and pid != os.getpid() and Path(process.cwd()).is_relative_to(folder)
    except psutil.AccessDenied:
        return of_others
    except (psutil.Error, OSError):  # it has ended
        return False


def is_perennial(words: Sequence[str]) -> bool:
    """Whether the words of a command are those of this program: `python -m pipeline`, or the program `perennial`."""
    names = [Path(word).name for word in words[:2]]
    if names[1:] == ["perennial"] and names[0].startswith("python"):
        return True
    return any(option == "-m" and f"{module}.".startswith("pipeline.") for option, module in pairwise(words))


def is_dvc(words: Sequence[str]) -> bool:
    """Whether the words of a command are those of DVC."""
    return any(path.name == "dvc" or path.parts[-2:] == ("dvc", "__main__.py") for path in map(Path, words))
