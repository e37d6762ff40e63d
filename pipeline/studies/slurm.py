"""Runs a work copy as a batch job of Slurm: submits it, says when it has ended, and waits for jobs of an earlier start.

The project is on a file system that all nodes have, at the same path. Slurm decides when and where a job runs. A job
that is preempted or whose node is lost is queued again by Slurm, and goes on from its last checkpoint.
"""

import functools
import hashlib
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.config import params
from pipeline.config.params import Params

NAME = "slurm"
JOB, STATUS = "slurm.job", "slurm.status"  # in a work copy: the name of its job, and the exit status of its command
SCRIPT = """#!/bin/sh
{command}
status=$?
echo $status > {status}.new && mv {status}.new {status}
exit $status
"""
POLL_SECONDS = 3.0  # between two questions to Slurm, which is asked about all jobs at once
SILENT_SECONDS = 300.0  # so long Slurm may fail to answer while a job runs: its controller may be started again


class BatchJob:
    """A job of Slurm, with the methods that the runner needs."""

    def __init__(self, number: str, name: str, folder: Path, log: Path) -> None:
        self.number = number
        self._name, self._folder, self._log, self._time = name, folder, log, time.monotonic()
        self._answer_time = time.monotonic()

    def poll(self) -> int | None:
        """The exit status of the job's command; None while the job is queued or runs.

        A job that Slurm has ended for good, such as at its time limit, has status 1, and a line in its log.
        Raises UserError if Slurm has not answered for SILENT_SECONDS.
        """
        if time.monotonic() - self._time < POLL_SECONDS:
            return None
        self._time = time.monotonic()
        try:
            is_queued = self._name in _queue()  # asked first: the status is written before the job ends
        except UserError:
            if time.monotonic() - self._answer_time > SILENT_SECONDS:
                raise
            return None
        self._answer_time = time.monotonic()
        # By listing the folder: over NFS a file of another node can be invisible for a minute under its own name.
        if any(self._folder.glob(STATUS)):
            return int((self._folder / STATUS).read_text())
        if is_queued:
            return None
        with self._log.open("a") as log:
            log.write(f"job {self.number} of Slurm has ended: {_state(self.number)}\n")
        return 1


def sbatch(on: str, config: Params) -> tuple[str, ...]:
    """sbatch with the options in a value of --on: `slurm`, followed by options. Raises UserError for another value."""
    name, *words = shlex.split(on) or [""]
    if name != NAME:
        raise UserError(Fault("--on", on, "value", allowed=f"{NAME}, '{NAME} --partition=gpu --time=2:00:00'"))
    if shutil.which("sbatch") is None:
        remedy = "start it where jobs are submitted, or leave out --on"
        raise UserError(Fault("--on", on, "machine", "there is no sbatch here", remedy=remedy))
    if config.run.nodes > 1 and config.run.launcher != "slurm":
        value = f"{config.run.launcher}; run.nodes: {config.run.nodes}"
        raise UserError(Fault("run.launcher", value, "pair", "each run is one job of Slurm", "slurm, or run.nodes: 1"))
    return ("sbatch", *words)


def submit(
    command: Sequence[str], folder: Path, log: str, sbatch: Sequence[str], environ: Mapping[str, str]
) -> BatchJob:
    """Submit a command that runs in a work copy. What it prints is appended to the log there.

    The numbers of nodes, tasks, cores and GPUs follow from the params, unless the options of `sbatch` say otherwise.
    Raises UserError if Slurm refuses the job.
    """
    config = params.load(folder / params.FILE)
    run, per_node = config.run, config.run.processes // config.run.nodes
    tasks = run.processes if run.launcher == "slurm" else 1
    cores = config.train.threads * run.processes // tasks
    gpus = [f"--gpus-per-node={per_node}"] if config.train.device == "cuda" else []
    place = [f"--chdir={folder.absolute()}", f"--output={log}", "--open-mode=append", "--export=ALL"]
    size = [f"--nodes={run.nodes}", f"--ntasks={tasks}", f"--cpus-per-task={cores}", *gpus]
    name = f"perennial-{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:12]}"
    files.remove(folder / STATUS)
    files.write_text(folder / JOB, name)  # before there is a job: if this process is killed now, the next one waits
    words = [sbatch[0], "--parsable", "--requeue", f"--job-name={name}", *place, *size, *sbatch[1:]]
    script = SCRIPT.format(command=shlex.join(command), status=STATUS)
    number = _ask(words, "change the options after --on slurm", input=script, env=dict(environ))
    return BatchJob(number.strip().partition(";")[0], name, folder, folder / log)


def wait(folder: Path) -> None:
    """Wait until no job works in a folder or in one below it. Prints for which it waits.

    Raises UserError if Slurm does not answer.
    """
    for mark in sorted({*folder.glob(JOB), *folder.glob(f"*/{JOB}")}):
        name, last_number = mark.read_text(), ""
        while number := _queue().get(name, ""):
            if number != last_number:
                last_number = number
                sentence = f"waiting for job {number} of Slurm, which works in {mark.parent}; to end it"
                print(f"{sentence}: scancel {number}", flush=True)
            time.sleep(POLL_SECONDS)
        files.remove(mark)


def _queue() -> dict[str, str]:
    """Name → number of each of this user's jobs that waits or runs. Raises UserError if Slurm does not answer."""
    return _queue_at(int(time.monotonic() / POLL_SECONDS))


@functools.lru_cache(1)
def _queue_at(_: int) -> dict[str, str]:
    """`_queue`, asked once in each interval of POLL_SECONDS."""
    lines = _ask(["squeue", "--noheader", "--me", "--format=%j %i"], "run again when Slurm answers").splitlines()
    return {name: number for name, _, number in (line.rpartition(" ") for line in lines)}


def _state(number: str) -> str:
    """The state of a job that has ended, as Slurm names it; "unknown" some minutes after its end (MinJobAge)."""
    words = _run(
        ["scontrol", "show", "job", number, "--oneliner"], "see whether Slurm is installed here"
    ).stdout.split()
    return next((word.removeprefix("JobState=") for word in words if word.startswith("JobState=")), "unknown")


def _ask(command: Sequence[str], remedy: str, **options: Any) -> str:
    """The output of a program of Slurm. Raises UserError, with its last line and the remedy, if it fails."""
    done = _run(command, remedy, **options)
    if done.returncode:
        value = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(Fault(command[0], value, "failed", remedy=remedy))
    return done.stdout


def _run(command: Sequence[str], remedy: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program of Slurm to its end. Raises UserError, with the remedy, if it cannot be started.

    It has a process group of its own: Ctrl-C is for this process, which may be submitting a job.
    """
    try:
        return subprocess.run(command, process_group=0, capture_output=True, text=True, check=False, **options)
    except OSError as error:
        raise UserError(Fault(command[0], str(error), "failed", remedy=remedy)) from None
