"""Starts of the programs in tests/ranks/ as the ranks of a world."""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.learning.environment import required_variables
from tests.helpers import starts


def free_port() -> int:
    """A port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def of_torchrun(size: int) -> list[dict[str, str]]:
    """The variables with which torchrun tells each of so many processes its place."""
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = map(str, range(size))
    return [{**shared, "TORCHELASTIC_RUN_ID": "test", "RANK": rank, "LOCAL_RANK": rank} for rank in ranks]


def run_ranks(size: int, program: str, *arguments: str) -> None:
    """Run `python -m tests.ranks.<program>` in `size` processes that form a world."""
    fork_world([f"tests.ranks.{program}", *arguments], starts.PROJECT, of_torchrun(size))


def train(folder: Path, places: Sequence[dict[str, str]] = ()) -> Path:
    """Train with two processes, without their launcher. `places`: other variables than torchrun's."""
    variables = [{**required_variables(1, True), **place} for place in places or of_torchrun(2)]
    fork_world(["pipeline", "rank", "train"], folder, variables)
    return folder


def fork_world(words: list[str], folder: Path, variables: Sequence[dict[str, str]]) -> None:
    """Run `python -m <words>` once with each of these variables. All of them must end with 0."""
    command = [sys.executable, "-m", *words]
    processes = [starts.fork(command, {**os.environ, **own}, folder) for own in variables]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes)
