"""Runs stages in work copies, several copies at the same time, and shows how far they are.

Each run has its own share of the cores, or of the GPUs. If this process ends, even by a kill, the kernel asks the runs
to end, and they save their state. The same command then goes on: DVC's run cache has the stages that have ended, and a
work copy keeps the checkpoints of a training.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from pipeline.base import linux, programs
from pipeline.base.errors import Fault, Stopped, UserError
from pipeline.config import machine
from pipeline.config.params import Params

LOG = "log.txt"  # in a work copy: what DVC and its stages print
PROGRESS = re.compile(r"(epoch \d|download: .*(%|unpack)|.*: unpacked)")  # lines of a log that say how far a stage is
PAUSE = 10.0  # seconds between two such lines of one run, at least
LOOK = 0.2  # seconds between two looks at the processes
LAST_LINES = 3  # of a log, in the message of a failure
LONG = 60  # seconds: a shorter rest is not announced
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST = 64  # runs at the same time


@dataclass(frozen=True)
class Job:
    """Stages that run one after another in a work copy."""

    name: str  # for messages
    folder: Path
    stages: tuple[str, ...]
    options: tuple[str, ...] = ("--single-item",)  # of dvc repro
    environ: Mapping[str, str] = field(default_factory=dict)  # variables besides those of this process


@dataclass(frozen=True)
class Slot:
    """What one run may use: cores of this machine, and GPUs."""

    cores: frozenset[int]
    gpus: tuple[str, ...]  # as CUDA_VISIBLE_DEVICES names them; none: the run sees those that this process sees


@dataclass(frozen=True)
class Ended:
    """A run that has ended. `failures` is empty if it ended well, and else says why it failed."""

    job: Job
    failures: tuple[Fault, ...]


@dataclass
class _Running:
    """A run whose DVC works."""

    job: Job
    slot: Slot
    process: subprocess.Popen[bytes]
    read: int  # bytes of its log
    shown: float = 0.0  # time of its last message


def slots(config: Params, parallel: int) -> list[Slot]:
    """What each of so many runs at the same time may use. Raises UserError if there are too few GPUs for them."""
    if not 1 <= parallel <= MOST:
        raise UserError(Fault("--jobs", str(parallel), "value", allowed=f"1 to {MOST}"))
    cores = sorted(os.sched_getaffinity(0))
    shares = [frozenset(cores[k::parallel] or [cores[k % len(cores)]]) for k in range(parallel)]
    if config.train.device == "cpu" or parallel == 1:
        return [Slot(share, ()) for share in shares]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(k) for k in range(machine.read().cuda_devices)]
    each = config.run.processes // config.run.nodes
    if parallel * each > len(gpus):
        reason = f"each run has {each} GPU{'s' if each > 1 else ''} of its own, and {len(gpus)} are visible here"
        raise UserError(Fault("--jobs", str(parallel), "machine", reason, f"1 to {max(1, len(gpus) // each)}"))
    return [Slot(share, tuple(gpus[k * each : (k + 1) * each])) for k, share in enumerate(shares)]


def run_all(jobs: Sequence[Job], places: Sequence[Slot], command: str) -> Iterator[Ended]:
    """Run the jobs, one in each slot at a time, and yield each when it has ended.

    `command` begins the messages. If the caller leaves the loop, or at a signal, the runs are asked to end, and have
    saved their state when this function ends.
    """
    linux.adopt_orphans()
    waiting, running, free = deque(jobs), list[_Running](), list(reversed(places))
    began, count = time.monotonic(), 0
    try:
        while waiting or running:
            while waiting and free:
                running.append(_start(waiting.popleft(), free.pop()))
            time.sleep(LOOK)
            for one in list(running):
                status = one.process.poll()
                _show_progress(one, command)
                if status is not None:
                    running.remove(one)
                    free.append(one.slot)
                    count += 1
                    rest = (time.monotonic() - began) / count * (len(jobs) - count)
                    about = f"; about {rest / 60:.0f} min to go" if rest > LONG else ""
                    state = "failed" if status else "done"
                    print(f"{command}: {one.job.name}: {state} ({count} of {len(jobs)}){about}", flush=True)
                    yield Ended(one.job, (_failure(one.job, status),) if status else ())
    finally:
        _end(running)


def run_well(jobs: Sequence[Job], places: Sequence[Slot], command: str) -> None:
    """Run the jobs as `run_all` does. Raises UserError for the first one that fails; the others are ended."""
    for ended in run_all(jobs, places, command):
        if ended.failures:
            raise UserError(*ended.failures)


def stop_on_signals(sentence: str) -> None:
    """Have the first signal of SIGNALS raise Stopped with this sentence, and later ones do nothing: runs still save."""

    def stop(number: int, _: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(f"stopped by {signal.Signals(number).name}; {sentence}")

    for each in SIGNALS:
        signal.signal(each, stop)


def _start(job: Job, slot: Slot) -> _Running:
    """Start DVC in a process group of its own: Ctrl-C reaches this process alone, which ends the group."""

    def prepare() -> None:
        linux.die_with_parent()
        os.sched_setaffinity(0, slot.cores)

    gpus = {"CUDA_VISIBLE_DEVICES": ",".join(slot.gpus)} if slot.gpus else {}
    with (job.folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dvc", "repro", *job.options, *job.stages],
            cwd=job.folder,
            env={**programs.environment(), **gpus, **job.environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
            preexec_fn=prepare,  # noqa: PLW1509  (this process has one thread)
        )
        return _Running(job, slot, process, log.tell())


def _show_progress(one: _Running, command: str) -> None:
    """Print the newest line of a log that says how far the run is, but not too often."""
    if time.monotonic() - one.shown < PAUSE:
        return
    new = (one.job.folder / LOG).read_bytes()[one.read :]
    if lines := [line for line in new.decode(errors="replace").splitlines() if PROGRESS.match(line)]:
        print(f"{command}: {one.job.name}: {lines[-1]}", flush=True)
        one.read, one.shown = one.read + len(new), time.monotonic()


def _failure(job: Job, status: int) -> Fault:
    log = job.folder / LOG
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = " | ".join(lines[-LAST_LINES:])
    return Fault(job.name, f"dvc repro ended with exit status {status}", "failed", said, remedy=f"all it said: {log}")


def _end(running: Sequence[_Running]) -> None:
    """End these runs and all their children, and wait until the last one has saved its state."""
    for one in running:
        with suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGTERM)
    while running:
        try:
            os.wait()
        except ChildProcessError:
            return
