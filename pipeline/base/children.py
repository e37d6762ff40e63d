"""Starts processes that cannot outlive this one, and waits until the last of them has ended."""

import os
import signal
import subprocess
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import psutil

from pipeline.base import linux


def start(command: Sequence[str], cores: Collection[int] = (), **options: Any) -> subprocess.Popen[Any]:
    """Start a command. `cores`: where it may run; by default, where this process may. `options`: those of Popen.

    It has a process group of its own, so Ctrl-C reaches this process alone. When this process ends, even by a kill, the
    kernel asks it to end.
    """

    def prepare() -> None:
        linux.die_with_parent()
        if cores:
            os.sched_setaffinity(0, cores)

    return subprocess.Popen(command, process_group=0, preexec_fn=prepare, **options)  # noqa: PLW1509  (one thread)


def run(command: Sequence[str], **options: Any) -> int:
    """Run a command to its end. Returns its exit status. At an exception (a signal) it is asked to end first.

    Waits for all that descends from it: a stage saves its state after its DVC has ended.
    """
    linux.adopt_orphans()
    others = pids()
    process = start(command, **options)
    try:
        return int(process.wait())
    finally:
        if process.poll() is None:
            send(process, signal.SIGTERM)
        wait_for_all(others)


def send(process: subprocess.Popen[Any], number: int) -> None:
    """Send a signal to a process that `start` has started, and to all in its group, if one still lives."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def pids() -> set[int]:
    """The IDs of the children of this process; among them orphans, if it adopts them."""
    return {child.pid for child in psutil.Process().children()}


def wait_for_all(others: Collection[int] = ()) -> None:
    """Wait until all children of this process have ended, but for `others`.

    If this process adopts orphans, it waits for all that descend from its children.
    """
    while ours := pids().difference(others):
        for pid in ours:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
