"""Runs a work copy as a batch job of Slurm, and waits for jobs of an earlier start.

The project is on a file system that all nodes have, at the same path. Slurm decides when and where a job runs. A job
that is preempted or whose node is lost is queued again by Slurm, and goes on from its last checkpoint. `sbatch --wait`
ends with the exit status of the job, so to the runner a job is a process of this machine. If this process is killed,
the job goes on.
"""

import hashlib
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.config import params
from pipeline.config.params import Params

NAME = "slurm"
JOB = "slurm.job"  # in a work copy: the name of its job
POLL_SECONDS = 3.0  # between two questions to Slurm


def sbatch(on: str, config: Params) -> tuple[str, ...]:
    """sbatch with the options in a value of --on: `slurm`, followed by options. Raises UserError for another value."""
    try:
        name, *words = shlex.split(on) or [""]
    except ValueError:  # a quote that does not end
        name = ""
    if name != NAME:
        raise UserError(Fault("--on", on, "value", allowed=f"{NAME}, '{NAME} --partition=gpu --time=2:00:00'"))
    if shutil.which("sbatch") is None:
        remedy = "start it where jobs are submitted, or leave out --on"
        raise UserError(Fault("--on", on, "machine", "there is no sbatch here", remedy=remedy))
    if config.run.nodes > 1 and config.run.launcher != "slurm":
        value = f"{config.run.launcher}; run.nodes: {config.run.nodes}"
        raise UserError(Fault("run.launcher", value, "pair", "each run is one job of Slurm", "slurm, or run.nodes: 1"))
    return ("sbatch", *words)


def job(command: Sequence[str], folder: Path, log: str, sbatch: Sequence[str]) -> list[str]:
    """The command that runs this command in a work copy as a job, to its end. The job appends to the log there.

    The numbers of nodes, tasks, cores and GPUs follow from the params, unless the options of `sbatch` say otherwise.
    """
    config = params.load(folder / params.FILE)
    run, per_node = config.run, config.run.processes // config.run.nodes
    tasks = run.processes if run.launcher == "slurm" else 1
    cores = config.train.threads * run.processes // tasks
    gpus = [f"--gpus-per-node={per_node}"] if config.train.device == "cuda" else []
    place = [f"--chdir={folder.absolute()}", f"--output={log}", "--open-mode=append", "--export=ALL"]
    size = [f"--nodes={run.nodes}", f"--ntasks={tasks}", f"--cpus-per-task={cores}", *gpus]
    name = f"perennial-{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:12]}"
    files.write_text(folder / JOB, name)  # before there is a job: if this process is killed now, the next one waits
    what = [f"--wrap=exec {shlex.join(command)}", "--wait", "--requeue", f"--job-name={name}"]
    return [sbatch[0], *what, *place, *size, *sbatch[1:]]


def wait(folder: Path) -> None:
    """Wait until no job works in a folder or in one below it. Prints for which it waits.

    Raises UserError if Slurm does not answer.
    """
    marks = sorted({*folder.glob(JOB), *folder.glob(f"*/{JOB}")})
    queue = _queue() if marks else {}
    for mark in marks:
        name, last_number = mark.read_text(), ""
        while number := queue.get(name, ""):
            if number != last_number:
                last_number = number
                sentence = f"waiting for job {number} of Slurm, which works in {mark.parent}; to end it"
                print(f"{sentence}: scancel {number}", flush=True)
            time.sleep(POLL_SECONDS)
            queue = _queue()
        files.remove(mark)


def _queue() -> dict[str, str]:
    """Name → number of each of this user's jobs that waits or runs. Raises UserError if Slurm does not answer."""
    command, remedy = ["squeue", "--noheader", "--me", "--format=%j %i"], "run again when Slurm answers"
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(Fault(command[0], str(error), "failed", remedy=remedy)) from None
    if done.returncode:
        value = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(Fault(command[0], value, "failed", remedy=remedy))
    return {name: number for name, _, number in (line.rpartition(" ") for line in done.stdout.splitlines())}
