"""Starts of the programs in tests/ranks/ as the ranks of a world."""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.helpers import starts


def free_port() -> int:
    """A port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(size: int, program: str, *arguments: str) -> None:
    """Run `python -m tests.ranks.<program>` in `size` processes that form a world. All of them must end with 0."""
    assert world_of(size, program, *arguments) == [0] * size


def world_of(size: int, program: str, *arguments: str, logs: Sequence[Path] = ()) -> list[int | None]:
    """The exit statuses of the same processes. `logs`: a file for each one, for its output and errors."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared = {"WORLD_SIZE": str(size), **address, "TORCHELASTIC_RUN_ID": "test"}
    words = [sys.executable, "-m", f"tests.ranks.{program}", *arguments]
    processes = [
        starts.fork(words, {**os.environ, **shared, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}, starts.PROJECT, *files)
        for rank, files in zip(range(size), [(log, log) for log in logs] or size * [()], strict=True)
    ]
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]
