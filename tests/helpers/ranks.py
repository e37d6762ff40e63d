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
    """Run `python -m tests.ranks.<program>` in `size` processes that form a world. All of them must end with 0."""
    assert world_of(size, program, *arguments) == [0] * size


def world_of(size: int, program: str, *arguments: str, logs: Sequence[Path] = ()) -> list[int | None]:
    """The exit statuses of the same processes. `logs`: a file for each one, for its output and errors."""
    return fork_world([f"tests.ranks.{program}", *arguments], starts.PROJECT, of_torchrun(size), logs)


def train(folder: Path, places: Sequence[dict[str, str]] = ()) -> Path:
    """Train with two processes, without their launcher. `places`: other variables than torchrun's."""
    variables = [{**required_variables(1, True), **place} for place in places or of_torchrun(2)]
    assert fork_world(["pipeline", "rank", "train"], folder, variables) == [0, 0]
    return folder


def fork_world(
    words: list[str], folder: Path, variables: Sequence[dict[str, str]], logs: Sequence[Path] = ()
) -> list[int | None]:
    """The exit statuses of `python -m <words>`, once with each of these variables."""
    processes = [
        starts.fork([sys.executable, "-m", *words], {**os.environ, **own}, folder, *files)
        for own, files in zip(variables, [(log, log) for log in logs] or len(variables) * [()], strict=True)
    ]
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]
