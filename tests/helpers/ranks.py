"""Starts of the programs in tests/ranks/ as the ranks of a world."""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.learning.environment import required_variables
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
    return fork_world(size, [f"tests.ranks.{program}", *arguments], starts.PROJECT, logs)


Place = Callable[[int], dict[str, str]]  # the variables of a rank


def train(folder: Path, place: Place | None = None) -> Path:
    """Train with two processes, without their launcher. `place`: what tells them their place, instead of torchrun's."""
    assert fork_world(2, ["pipeline", "rank", "train"], folder, place=place) == [0, 0]
    return folder


def fork_world(
    size: int, words: list[str], folder: Path, logs: Sequence[Path] = (), place: Place | None = None
) -> list[int | None]:
    """The exit statuses of `python -m <words>` in so many processes."""
    port = str(free_port())

    def of_torchrun(rank: int) -> dict[str, str]:
        names = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "TORCHELASTIC_RUN_ID": "test"}
        return {**names, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}

    processes = [
        starts.fork(
            [sys.executable, "-m", *words],
            {**os.environ, **required_variables(1, True), **(place or of_torchrun)(rank)}, folder, *files,
        )
        for rank, files in zip(range(size), [(log, log) for log in logs] or size * [()], strict=True)
    ]  # fmt: skip
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]
