"""Runs stages in working copies, several at the same time, and shows how far they are."""

import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import killpg, wait
from pathlib import Path

from pipeline.base import linux, programs
from pipeline.base.errors import UserError

LOG = "log.txt"  # in a copy: what DVC and its stages print
SHOWN = re.compile(r"(epoch \d|download: .*(%|unpack)|.*: unpacked)")  # lines of a log that say how far a stage is
PAUSE = 10.0  # seconds between two such lines of one job, at least
LOOK = 0.2  # seconds between two looks at the processes
LAST_LINES = 3  # of a log, in the message of a failure


@dataclass(frozen=True)
class Job:
    """Stages that run one after another in a working copy."""

    name: str  # for messages
    folder: Path
    stages: tuple[str, ...]


@dataclass
class _Running:
    """A job whose DVC runs."""

    job: Job
    process: subprocess.Popen[bytes]
    read: int = 0  # characters of its log
    shown: float = 0.0  # time of its last message


def finished(jobs: Sequence[Job], at_once: int, command: str) -> Iterator[Job]:
    """Run the jobs, at most `at_once` at the same time, and give each one when it has ended well.

    `command` begins the messages. If a job fails, or at an interrupt, all are ended, and have saved their state when
    this function ends. Raises UserError with the last lines of the job that failed.
    """
    linux.adopt_orphans()
    waiting, running = deque(jobs), list[_Running]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_start(waiting.popleft()))
            time.sleep(LOOK)
            for one in list(running):
                status = one.process.poll()
                _show(one, command)
                if status is not None:
                    running.remove(one)
                    if status:
                        raise UserError(_failure(one.job, status))
                    yield one.job
    finally:
        _end(running)


def _start(job: Job) -> _Running:
    """Start DVC in a process group of its own: Ctrl-C reaches this process alone, which ends the group."""
    command = [sys.executable, "-m", "dvc", "repro", "--single-item", *job.stages]
    with (job.folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=job.folder,
            env=programs.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
            preexec_fn=linux.die_with_parent,  # noqa: PLW1509  (this process has one thread)
        )
    return _Running(job, process, len(_log(job)))


def _show(one: _Running, command: str) -> None:
    """Print the newest line of a log that says how far the job is, but not too often."""
    if time.monotonic() - one.shown < PAUSE:
        return
    text = _log(one.job)
    lines = [line for line in text[one.read :].splitlines() if SHOWN.match(line)]
    if lines:
        print(f"{command}: {one.job.name}: {lines[-1]}", flush=True)
        one.read, one.shown = len(text), time.monotonic()


def _failure(job: Job, status: int) -> str:
    lines = [line for line in _log(job).splitlines() if line.strip()]
    said = f"{job.name}: dvc repro ended with exit status {status}; its output is in {job.folder / LOG}, which ends so:"
    return "\n".join([said, *(f"  {line}" for line in lines[-LAST_LINES:])])


def _log(job: Job) -> str:
    path = job.folder / LOG
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _end(running: Sequence[_Running]) -> None:
    """End these processes and all their children, and wait until the last one has saved its state."""
    for one in running:
        with suppress(ProcessLookupError):
            killpg(one.process.pid, signal.SIGTERM)
    while running:
        try:
            wait()
        except ChildProcessError:
            return
