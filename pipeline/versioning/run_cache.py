"""Runs DVC so that several DVCs can use one run cache at the same time.

    python <this file> dvc <arguments of dvc>

DVC writes a new entry of the run cache beside the old ones, and then renames it. Another DVC that looks for the newest
entry at that moment takes it for a damaged one and removes it, and the first DVC fails (dvc/stage/cache.py, DVC 3).
This module imports nothing of the project: work copies of other commits run it by its path. The word `dvc` is there so
that others recognize this process (processes.is_dvc).
"""

import fcntl
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lock() -> None:
    """Make DVC in this process wait, before it reads or writes an entry, until no other such DVC does so.

    The lock is on the folder of the cache itself, so it adds no file.
    """
    from dvc.stage.cache import StageCache

    for name in ("_load", "save"):
        setattr(StageCache, name, _exclusive(getattr(StageCache, name)))
    load = StageCache._load_cache
    # DVC fails at the empty folder that a killed DVC leaves: the newest entry in it is None.
    StageCache._load_cache = lambda cache, key, entry: entry and load(cache, key, entry)


def _exclusive(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of StageCache that holds the lock while it runs. Without a run cache there is nothing to lock."""

    @functools.wraps(method)
    def locked(cache: Any, *arguments: Any, **options: Any) -> Any:
        if method.__name__ == "save":
            Path(cache.cache_dir).mkdir(parents=True, exist_ok=True)
        elif not Path(cache.cache_dir).is_dir():
            return method(cache, *arguments, **options)
        folder = os.open(cache.cache_dir, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            return method(cache, *arguments, **options)
        finally:
            os.close(folder)

    return locked


def main(arguments: list[str]) -> int:
    """Run DVC. Returns its exit status."""
    from dvc.cli import main as dvc

    lock()
    status: int = dvc(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
