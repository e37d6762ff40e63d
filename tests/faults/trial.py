"""One trial of a kill sweep: an interrupted run, the runs after it, and what the interruption left."""

import random
import re
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from benchmarks.harness.workspace import STAGES, create_repository, set_params
from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.versioning import dvc_lock
from tests.faults.plan import ELASTIC, PARAMS, Fault, last_stage
from tests.faults.watched_run import left_in, send, start, wait_for_moment
from tests.helpers.projects import call

MOST_REPROS = 4


@dataclass(frozen=True)
class Reference:
    """The uninterrupted run."""

    locks: dict[str, bytes]  # dvc.lock after each stage
    seconds: dict[str, float]  # how long each stage took, with DVC's part
    steps: int  # of train
    processes: tuple[int, ...]  # the numbers of processes that a start may have


@dataclass(frozen=True)
class Trial:
    """The outcome of one fault."""

    fault: Fault
    missed: bool
    status: int  # exit status of the interrupted command; negative: the signal that ended it
    orphans: int
    gone_seconds: float  # from the signal until no process was left
    repros: int  # runs until one succeeded
    repairs: list[str]  # what `perennial repro` repaired
    false_record: bool
    same: bool
    last_step: int | None  # of train: the last step before the signal
    resumed_step: int | None  # the step at which train was resumed; None: train did not run again
    seconds: float

    @property
    def lost(self) -> int | None:
        """Steps that were computed twice."""
        if self.last_step is None or self.resumed_step is None:
            return None
        return max(0, self.last_step - self.resumed_step)


def prepare(base: Path, elastic: bool) -> Reference:
    """Run the pipeline once, and keep the state before each stage in `base/<stage>`. AssertionError if it fails."""
    folder = base / "reference"
    create_repository(folder, ELASTIC if elastic else PARAMS)
    locks, seconds = {}, {}
    for stage in STAGES:
        shutil.copytree(folder, base / stage, symlinks=True)
        files.remove(base / stage / ".dvc/cache/runs")
        began = time.monotonic()
        call(folder, sys.executable, "-m", "dvc", "repro", stage)
        locks[stage], seconds[stage] = (folder / "dvc.lock").read_bytes(), time.monotonic() - began
    steps = int(files.read_csv(folder / "metrics/history.csv")[-1]["step"])
    shutil.rmtree(folder)
    return Reference(locks, seconds, steps, (1, 2, 3, 4) if elastic else (2,))


def entry(lock: bytes, stage: str) -> Any:
    """A stage's entry in a dvc.lock; None if there is none that can be read."""
    try:
        content = YAML(typ="safe", pure=True).load(lock.decode(errors="replace"))
        return content["stages"].get(stage)
    except (YAMLError, TypeError, KeyError, AttributeError):
        return None


def run_trial(before: Path, reference: Reference, fault: Fault, generator: random.Random) -> Trial:
    """Interrupt a run that starts from a copy of `before`, and run again until it succeeds."""
    folder, began = before.with_name("trial"), time.monotonic()
    expected = reference.locks[last_stage(fault.stage)]
    # All of them: if the signal cut the only dvc.lock, the stages before the interrupted one are made again, too.
    goals = [stage for stage in STAGES if entry(expected, stage)]
    shutil.copytree(before, folder, symlinks=True)
    set_params(folder, {"run": {"processes": generator.choice(reference.processes)}})
    run = start(folder, fault.stage, through_repro=fault.target == "repro")
    seconds = reference.seconds[fault.stage]
    missed = not wait_for_moment(run, fault.moment, seconds, reference.steps, generator)
    send(run, fault, generator)
    sent = time.monotonic()
    status = run.process.wait()
    orphans = left_in(folder)
    gone = time.monotonic() - sent
    for process in orphans:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    lock = folder / "dvc.lock"
    record = None
    with suppress(UserError):  # missing, or cut, which the next run says and repairs
        record = dvc_lock.entries(lock).get(fault.stage)
    last_step = run.steps() if fault.stage == "train" else None
    repros, log, notes, again = 0, "", "", None
    while again != 0 and repros < MOST_REPROS:
        set_params(folder, {"run": {"processes": generator.choice(reference.processes)}})
        done = call(folder, sys.executable, "-m", "pipeline", "repro", *goals, check=False)
        repros, again = repros + 1, done.returncode
        log, notes = log + done.stdout + done.stderr, notes + done.stderr
    same = again == 0 and lock.read_bytes() == expected
    if not same:
        print(f"{fault}: status {status}\n{run.log.read_text()}\n---- again:\n{log}", file=sys.stderr)
    shutil.rmtree(folder)
    return Trial(
        fault, missed, status, len(orphans), round(gone, 1), repros,
        repairs=re.findall(r"^repro: (.*)", notes, re.MULTILINE),
        false_record=record is not None and record != entry(expected, fault.stage),
        same=same, last_step=last_step, resumed_step=resumed_step(log) if fault.stage == "train" else None,
        seconds=round(time.monotonic() - began, 1),
    )  # fmt: skip


def resumed_step(log: str) -> int | None:
    """The step at which train was resumed; 0 if it began anew; None if it did not run."""
    if steps := re.findall(r"going on from step (\d+)", log):
        return int(steps[0])
    return 0 if re.search("^train: ", log, re.MULTILINE) else None
