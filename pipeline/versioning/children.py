"""Starts processes that end with this one, and waits for the end of the last of them."""

import os
import signal
import subprocess
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import psutil

from pipeline.base import linux


def start(command: Sequence[str], cores: Collection[int] = (), **options: Any) -> subprocess.Popen[Any]:
    """Start a command on `cores`, by default on those of this process. `options`: those of Popen.

    It has a process group of its own, so Ctrl-C reaches only this process. When this process ends, even by SIGKILL, the
    kernel sends SIGTERM to the command.
    """
    parent = os.getpid()

    def prepare() -> None:
        linux.die_with(parent)
        if cores:
            os.sched_setaffinity(0, cores)

    return subprocess.Popen(command, process_group=0, preexec_fn=prepare, **options)  # noqa: PLW1509  (one thread)


def run(command: Sequence[str], **options: Any) -> int:
    """Run a command to its end. Returns its exit status. At an exception (a signal), first send it SIGTERM.

    Waits for all descendants of the command: a stage saves its state after its DVC has ended.
    """
    linux.adopt_orphans()
    others = pids()
    process = start(command, **options)
    try:
        return wait(process)
    finally:
        if process.poll() is None:
            send(process, signal.SIGTERM)
        wait_for_all(others)


def wait(process: subprocess.Popen[Any], tell_stopped: Callable[[], object] = lambda: None) -> int:
    """The exit status of a process, after its end. Signals are handled meanwhile, within a second.

    A signal that came just before a wait without end would be handled only after it. `tell_stopped` is called once each
    time that somebody has stopped the process (SIGSTOP).
    """
    was_stopped = False
    while True:
        with suppress(subprocess.TimeoutExpired):
            return int(process.wait(1))
        is_stopped = psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
        if is_stopped and not was_stopped:
            tell_stopped()
        was_stopped = is_stopped


def send(process: subprocess.Popen[Any], number: int) -> None:
    """Send a signal to a process that `start` has started, and to all in its group, if one still lives."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def pids() -> set[int]:
    """The IDs of the children of this process, with the orphans that it has adopted."""
    return {child.pid for child in psutil.Process().children()}


def wait_for_all(others: Collection[int] = ()) -> None:
    """Wait until all children of this process have ended, except `others`.

    If this process adopts orphans, it waits for all descendants of its children.
    """
    while ours := pids().difference(others):
        for pid in ours:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
