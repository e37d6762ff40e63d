"""Starts of the programs in tests/ranks/ as the ranks of a world."""

import os
import socket
import subprocess
import sys

from tests.helpers import starts


def free_port() -> int:
    """A port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(size: int, program: str, *arguments: str) -> None:
    """Run `python -m tests.ranks.<program>` in `size` processes that form a world. All of them must end with 0."""
    assert [process.wait() for process in start_ranks(size, program, *arguments)] == [0] * size


def start_ranks(size: int, program: str, *arguments: str, stderr: int | None = None) -> list[subprocess.Popen[str]]:
    """Start `python -m tests.ranks.<program>` in `size` processes that form a world."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared = {"WORLD_SIZE": str(size), **address, "TORCHELASTIC_RUN_ID": "test"}
    return [
        starts.Popen(
            [sys.executable, "-m", f"tests.ranks.{program}", *arguments], text=True, stderr=stderr,
            cwd=starts.PROJECT, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(size)
    ]  # fmt: skip
