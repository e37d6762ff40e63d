"""Run the committed stages again, and compare every output with a committed dvc.lock: `perennial verify`.

    perennial verify                    every stage
    perennial verify --stage train      one stage, from inputs that DVC's cache holds
    perennial verify audit 0.1          a tenth of the training, drawn with a seed, from states that were kept

First the folder itself is checked. Every file that decides bytes must be committed. Outputs must be as in dvc.lock: DVC
compares their times, then every byte of them and of DVC's cache is read. dvc.lock must belong to the committed code,
params and pins; otherwise it is stale. Then a temporary work copy of the commit runs the stages by force. It reads
inputs from this folder's cache, takes nothing from the run cache, and writes to neither. A command that is not this
project's own is named before it runs. A copy of a file, say, would have the right hash, too, and would show nothing.

Exit status: 0 if all that was repeated is equal; 3 if something differs; 4 if it cannot be repeated here: this machine
cannot run it, or a stage failed; 1 if it is refused: the folder, an option or a stage's command is not what it has to
be.

Each state of the repeated training is compared with metrics/history.csv. At the first epoch with another state it ends.

`audit` needs the states in states/ (run.keep_states; `dvc add states` hands them on). --seed, by default a new one,
draws the epochs; --part 2/3 repeats the second third of them, for several checkers with one seed. --processes: with
train.parallel elastic, another number of them.

In a clone of what somebody else has published, nobody has to have the outputs: its dvc.lock has their hashes, and every
stage is repeated. This runs somebody else's code, this check among it, as your user. Photos and weights of `dvc add`
come from its remote.

--json: what a person reads goes to stderr. stdout has one JSON object, an in-toto statement (attest/statement.py), or
nothing if something differs.

Your own photos and pretrained weights are in a commit only after `dvc add`. Without it, the stages that read them are
not repeated.
"""

import json
import os
import secrets
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from graphlib import TopologicalSorter
from pathlib import Path

from pipeline.attest import clone, comparison, folder, repetition, segments, statement
from pipeline.base import errors, files
from pipeline.base.errors import DIFFERENT, NOT_HERE, Fault, UserError, exit_status, missing
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.evaluation import figures
from pipeline.running import terminal
from pipeline.running.claim import Claim
from pipeline.studies import runner
from pipeline.studies.runner import Job
from pipeline.versioning import dvc_lock, programs
from pipeline.versioning.dvc_lock import StageHashes

REMOVED = "the work copy is removed"


def verify(only: str | None) -> int:
    """Run all stages, or the stage `only`, in a work copy, and print the comparison. Returns the exit status.

    Raises UserError if this folder is not clean, or if a stage fails.
    """
    if not dvc_lock.LOCK.exists():
        raise missing(dvc_lock.LOCK, "perennial repro writes it; perennial demo repeats the recorded demo")
    names = dvc_lock.read()
    if only is not None and only not in names:
        raise UserError(Fault("--stage", repr(only), "unknown", allowed=", ".join(names)))
    in_clone = only is None and clone.is_here(names)  # one stage needs its inputs
    config, stage_hashes = clone.checked() if in_clone else folder.checked()
    stages = plan(config, stage_hashes, only)
    if not stages:
        raise UserError(Fault(str(dvc_lock.LOCK), "no stage that can be repeated", "missing", remedy="perennial repro"))
    faults = folder.foreign_commands(stages)
    print(*(f"verify: {sentence}\n" for sentence in faults), sep="", end="", flush=True)
    history = Path(config.paths.metrics) / figures.HISTORY
    states = segments.claimed_states(history.parent) if history.is_file() else {}
    commit = programs.output("git", "rev-parse", "--short", "HEAD").strip()
    with tempfile.TemporaryDirectory(prefix="perennial-verify-") as temporary:
        place = Path(temporary) / "copy"
        print(f"verify: repeating {', '.join(stages)} of commit {commit} in {place}", flush=True)
        copy = repetition.make_copy(place, config, stage_hashes, stages)
        outs = dvc_lock.outputs(stage_hashes, stages)
        for path in outs:
            files.remove(place / path)  # else a stage that does not run would leave the one of the commit
        variables = repetition.variables(copy) | segments.write_claim(place, Claim(states))
        failures = run(Job(f"commit {commit}", place, (*stages,), repetition.BY_FORCE, variables))
        if epoch := segments.differing_epoch(place):
            print(f"\n{describe_difference(epoch, states)}")
            return DIFFERENT
        errors.raise_if_any(failures)
        differing = comparison.compare(outs, place)
    result = f"differs: {', '.join(differing)}" if differing else f"every output is as {dvc_lock.LOCK} says"
    print(f"\nverify: {result}")
    if faults:
        print(f"verify: {len(faults)} of {len(stages)} stages ran a command that is not this project's: see above")
    return DIFFERENT if differing else int(bool(faults))


def describe_difference(epoch: int, states: Mapping[int, str]) -> str:
    """The sentence for a training whose state differs after this epoch."""
    equal = max((each for each in states if each < epoch), default=0)
    before = f"the state after epoch {equal} is the same" if equal else "no earlier state is compared"
    return f"verify: differs: the training, in epoch {epoch} of {max(states)}; {before}; it is not repeated further"


def run(job: Job) -> list[Fault]:
    """Run a job of a work copy that is removed afterwards. Returns why it failed, or nothing. Keeps a failure's log."""
    with closing(runner.run_all([job], [runner.here()], "verify")) as ends:
        ((_, failures),) = ends
    log = job.folder / runner.LOG
    if failures:
        repetition.LOG.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, repetition.LOG)
    return [replace(fault, remedy=fault.remedy.replace(str(log), str(repetition.LOG))) for fault in failures]


def plan(config: Params, stage_hashes: StageHashes, only: str | None) -> list[str]:
    """The stages that are repeated: `only`, or all whose input is in a commit. Each comes after those that it reads.

    Raises UserError if `only` cannot run again.
    """
    inputs = repetition.unversioned(config)
    if only in inputs:
        reason = f"so the stage {only} cannot be repeated"
        raise UserError(Fault(inputs[only], "in no commit", "missing", reason, "the other stages"))
    if only is not None:
        return [only]
    for stage, path in inputs.items():
        print(f"verify: {path}: in no commit, so {stage} cannot be repeated; the other stages can")
    names = TopologicalSorter(dvc_lock.graph()).static_order()
    return [name for name in names if name in stage_hashes and name not in inputs]


def repeat(arguments: Namespace) -> int:
    """Repeat all stages, one, or the segments of the training that a seed draws. Returns the exit status."""
    with stdout_to_stderr() if arguments.json else nullcontext():
        stated = state(arguments) if arguments.json else ""  # before any stage runs
        if arguments.what is None:
            status = verify(arguments.stage)
        else:
            options = arguments.share, arguments.seed, arguments.part, arguments.processes
            status = segments.audit(*folder.checked(), *options)
    if arguments.json and status == 0:
        print(stated)
    return status


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """A block in which what this process and its children print, such as a training, goes to stderr."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def state(arguments: Namespace) -> str:
    """The statement, as JSON, that what the arguments name was repeated. Raises UserError without a dvc.lock here."""
    if not dvc_lock.LOCK.exists():
        raise UserError(Fault("--json", "no dvc.lock here", "missing", remedy="perennial repro writes it"))
    config = params.load()
    if arguments.what == "audit":
        part = "/".join(map(str, arguments.part))
        tests = [f"audit {arguments.share} of train, seed {arguments.seed}, part {part}"]
    else:
        inputs = repetition.unversioned(config)
        tests = [arguments.stage] if arguments.stage else [name for name in dvc_lock.read() if name not in inputs]
    return json.dumps(statement.make(config, programs.last_commit(), tests), indent=2, sort_keys=True)


def main(arguments: Namespace) -> int:
    if arguments.what == "audit" and arguments.seed is None:
        arguments.seed = secrets.randbelow(2**32)
    runner.stop_on_signals("", KeyboardInterrupt)
    return exit_status(terminal.red("verify"), lambda: repeat(arguments), REMOVED, NOT_HERE)
