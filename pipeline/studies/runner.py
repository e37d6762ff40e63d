"""Runs stages in work copies, several copies at the same time, and prints their progress.

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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from pipeline.base import linux
from pipeline.base.errors import Fault, Stopped, UserError, raise_if_any
from pipeline.checks import machine, validity
from pipeline.checks.machine import Machine
from pipeline.config.params import Params
from pipeline.studies import slurm
from pipeline.versioning import children, programs, run_cache

LOG = "log.txt"  # in a work copy: what DVC and its stages print
# Lines of a log that say how far a run is.
PROGRESS = re.compile(r"epoch \d|download: .*(%|unpack)|.*: unpacked|Running stage ")
MESSAGE_SECONDS = 10.0  # between two such lines of one run, at least
POLL_SECONDS = 0.2  # between two polls of the processes
LAST_LINES = 3  # of a log, in the message of a failure
MIN_REST_SECONDS = 60  # a shorter time to go is not printed
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
    prepare: Callable[[], object] = lambda: None  # makes the work copy when it is its turn


@dataclass(frozen=True)
class Slot:
    """The cores of this machine and the GPUs that one run may use."""

    cores: frozenset[int]
    gpus: tuple[str, ...]  # as CUDA_VISIBLE_DEVICES names them; none: the run sees those that this process sees
    sbatch: tuple[str, ...] = ()  # the command that submits a job of Slurm; empty: the run is a process of this machine


@dataclass
class _Run:
    """A job whose DVC runs."""

    job: Job
    slot: Slot
    process: subprocess.Popen[Any]
    log_start: int  # bytes that its log had before
    log_position: int  # bytes of its log that were read
    message_time: float = 0.0  # of its last message


def here() -> Slot:
    """All cores of this machine."""
    return Slot(frozenset(os.sched_getaffinity(0)), ())


def machine_of(on: str) -> Machine | None:
    """This machine; None for a value of --on: nobody knows yet where the runs will be."""
    return None if on else machine.read()


def faults(config: Params, where: Machine | None) -> list[Fault]:
    """Why runs with these params cannot run on a machine; None: why they cannot run on any."""
    all_faults = validity.faults(config, where or machine.read())
    return [fault for fault in all_faults if where or fault.kind != "machine"]


def slots(config: Params, parallel: int, on: str = "") -> list[Slot]:
    """The slots of so many runs at the same time. `on`: a value of --on.

    Raises UserError if there are too few GPUs for them, or for a value that is not allowed.
    """
    if not 1 <= parallel <= MOST:
        raise UserError(Fault("--jobs", str(parallel), "value", allowed=f"1 to {MOST}"))
    if on:
        return [replace(here(), sbatch=slurm.sbatch(on, config))] * parallel
    cores = sorted(os.sched_getaffinity(0))
    shares = [frozenset(cores[k::parallel] or [cores[k % len(cores)]]) for k in range(parallel)]
    if config.train.device == "cpu" or parallel == 1:
        return [Slot(share, ()) for share in shares]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = machine.read().cuda_devices
    gpus = (visible.split(",") if visible else [str(k) for k in range(count)])[:count]
    each = config.run.processes // config.run.nodes
    if parallel * each > len(gpus):
        reason = f"each run has {each} GPU{'s' if each > 1 else ''} of its own, and {len(gpus)} are visible here"
        raise UserError(Fault("--jobs", str(parallel), "machine", reason, f"1 to {max(1, len(gpus) // each)}"))
    return [Slot(share, tuple(gpus[k * each : (k + 1) * each])) for k, share in enumerate(shares)]


def run_all(jobs: Sequence[Job], places: Sequence[Slot], command: str) -> Generator[tuple[Job, list[Fault]]]:
    """Run the jobs, one in each slot at a time, and yield each at its end, with the faults why it failed.

    `command` begins the messages. If the caller leaves the loop, or at a signal, the runs are asked to end, and have
    saved their state when this function ends.
    """
    linux.adopt_orphans()
    others = children.pids()
    waiting, running, free = deque(jobs), list[_Run](), list(reversed(places))
    began, count = time.monotonic(), 0
    try:
        while waiting or running:
            while waiting and free:
                job = waiting.popleft()
                job.prepare()
                with _defer_signals():
                    running.append(_start(job, free.pop()))
            time.sleep(POLL_SECONDS)
            for one in list(running):
                status = one.process.poll()
                _show_progress(one, command)
                if status is not None:
                    running.remove(one)
                    free.append(one.slot)
                    count += 1
                    rest = (time.monotonic() - began) / count * (len(jobs) - count)
                    about = f"; about {rest / 60:.0f} min to go" if rest > MIN_REST_SECONDS and not status else ""
                    state = "failed" if status else "done"
                    print(f"{command}: {one.job.name}: {state} ({count} of {len(jobs)}){about}", flush=True)
                    yield one.job, _faults(one, status)
    finally:
        with _defer_signals():
            for one in running:
                children.send(one.process, signal.SIGTERM)
            children.wait_for_all(others)
            if any(one.slot.sbatch for one in running):
                ends = "the same command waits for them; squeue --me lists them, scancel ends them"
                print(f"{command}: its jobs of Slurm go on; {ends}", flush=True)


def run_or_raise(jobs: Sequence[Job], places: Sequence[Slot], command: str) -> None:
    """Run the jobs as `run_all` does. Raises UserError for the first one that fails; the others are ended."""
    with closing(run_all(jobs, places, command)) as ends:
        for _, failures in ends:
            raise_if_any(failures)


def stop_on_signals(sentence: str, kind: type[BaseException] = Stopped) -> None:
    """Make the first signal of SIGNALS raise Stopped with this sentence, and ignore later ones: runs still save.

    A signal that this process ignores stays ignored (nohup). `kind`: another exception than Stopped.
    """

    def stop(number: int, _: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise kind(f"stopped by {signal.Signals(number).name}; {sentence}")

    for each in SIGNALS:
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, stop)


@contextmanager
def _defer_signals() -> Iterator[None]:
    """Defer signals until the end of the block.

    Not with a mask: libraries have threads, and the system gives a signal to any thread that does not mask it.
    """
    pending: list[int] = []
    handlers = {each: signal.signal(each, lambda number, _: pending.append(number)) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    for number in pending:
        signal.raise_signal(number)


def _start(job: Job, slot: Slot) -> _Run:
    """Start DVC for a job."""
    gpus = {"CUDA_VISIBLE_DEVICES": ",".join(slot.gpus)} if slot.gpus else {}
    command = [sys.executable, "-P", run_cache.__file__, "dvc", "repro", *job.options, *job.stages]
    environ = {**programs.environment(), **gpus, **job.environ}
    with (job.folder / LOG).open("ab") as log:
        position = log.tell()
        command = slurm.job(command, job.folder, LOG, slot.sbatch) if slot.sbatch else command
        process = children.start(
            command, slot.cores, cwd=job.folder, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        return _Run(job, slot, process, position, position)


def _show_progress(one: _Run, command: str) -> None:
    """Print the newest line of a log that says how far the run is, but not too often."""
    if time.monotonic() - one.message_time < MESSAGE_SECONDS:
        return
    new = _log(one.job, one.log_position)
    new = new[: new.rfind(b"\n") + 1]
    if lines := [line for line in new.decode(errors="replace").splitlines() if PROGRESS.match(line)]:
        message = re.sub(r"Running stage '(\w+)':?", r"stage \1", lines[-1])
        print(f"{command}: {one.job.name}: {message}", flush=True)
        one.log_position, one.message_time = one.log_position + len(new), time.monotonic()


def _log(job: Job, start: int) -> bytes:
    """The bytes of a log from a position on."""
    with (job.folder / LOG).open("rb") as log:
        log.seek(start)
        return log.read()


def _faults(one: _Run, status: int) -> list[Fault]:
    """The reason of an exit status, with the last lines of the log; none of the status 0."""
    if not status:
        return []
    text = _log(one.job, one.log_start).decode(errors="replace")
    last_lines = " | ".join([line.strip() for line in text.splitlines() if line.strip()][-LAST_LINES:])
    how = f"exit status {status}" if status > 0 else signal.Signals(-status).name
    what = "the job of Slurm" if one.slot.sbatch else "dvc repro"  # it is also what sbatch refuses
    remedy = f"its log: {one.job.folder / LOG}"
    return [Fault(one.job.name, f"{what} ended with {how}", "failed", last_lines, remedy=remedy)]
