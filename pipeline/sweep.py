"""Try settings: a grid, random draws, or a search that learns. The best one by validation is tested once.

    python -m pipeline.sweep docs/sweep.yaml             writes metrics/sweep.csv and reports/sweep.html
    python -m pipeline.sweep docs/sweep.yaml --jobs 2    two trials at a time (not with search: tpe)
    python -m pipeline.sweep docs/sweep.yaml --apply     writes the settings of its best trial into params.yaml

One trial has the present settings. Each is trained in a work copy of the project (.dvc/tmp/reruns/sweep/), on the data
of this folder. Your files, with params.yaml and what is not committed, stay as they are. Finished trials are not run
again, and an interrupted one goes on from its checkpoint: if this command is stopped or killed, run it again.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.base import dvc_lock, files, integrity, locks, programs, schema
from pipeline.base.errors import Fault, UserError, exit_status
from pipeline.config import document, machine, params
from pipeline.config.params import Params
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures, TrainFigures
from pipeline.planning.survey import Survey
from pipeline.reruns import ranges, runner, search, sweep_page, trials, workcopy
from pipeline.reruns.ranges import Sweep, Trial
from pipeline.reruns.runner import Ended, Job, Slot
from pipeline.reruns.trials import Done

FOLDER = workcopy.FOLDER / "sweep"
PROJECT, RESULTS = FOLDER / "project", FOLDER / "results"  # a copy of the project, and what finished trials gave
DATA = ("download", "split", "prepare")
TRAIN, TEST = ("weights", "train"), ("weights", "train", "evaluate")  # the stages of a trial, and of the best one


@dataclass(frozen=True)
class Best:
    """The best trial of a sweep."""

    __pydantic_config__ = schema.STRICT

    trial: int
    values: dict[str, Any]  # section.key → value


@dataclass(frozen=True)
class Training:
    """The training of a trial."""

    trial: Trial
    title: str  # for messages
    name: str  # of its experiment and its work copy
    kept: Path  # what it gave, or said if it failed; the name is its identity

    def job(self, stages: tuple[str, ...] = TRAIN) -> Job:
        """How it is run. No test image is read."""
        environ = {"DVC_EXP_NAME": self.name}  # is in the name of the folder in runs/, as for experiments of DVC
        prepare = partial(copy, FOLDER / self.name, self.trial.values)
        return Job(self.title, FOLDER / self.name, stages, environ=environ, prepare=prepare)


@dataclass(frozen=True)
class Study:
    """A sweep that runs: what is tried, from which settings, with which data and code, and what each trial may use."""

    sweep: Sweep
    config: Params
    present: Mapping[str, Any]  # the values that params.yaml has
    shared: Mapping[str, str]  # hashes of data and code
    weights: Mapping[str, str]  # hashes of the user's own weights files
    slots: Sequence[Slot]

    def training(self, trial: Trial, word: str = "") -> Training:
        """The training of a trial. `word` stands for its number in the name."""
        digest = trials.digest(params.changed(self.config, trial.values), self.shared, self.weights)
        title = f"trial {trial.number} of {self.sweep.trials} ({trials.described(trial.values)})"
        number = f"{trial.number:0{len(str(self.sweep.trials))}}"
        return Training(trial, title, trials.name(self.sweep.name, word or number, digest), RESULTS / digest)

    def done(self, training: Training) -> Done:
        """What a training gave: one result, or none."""
        metrics, remedy = training.kept / self.config.paths.metrics, f"rm -r {training.kept}, then run again"
        results = (figures.read(metrics, TrainFigures, remedy),) if metrics.is_dir() else ()
        return Done(training.trial, training.name, results)


def say(sentence: str) -> None:
    print(f"sweep: {sentence}", flush=True)


def sweep(path: Path, jobs: int) -> int:
    """Run every trial that has no result yet, rank them, and test the best one; 0. Raises UserError if none has one."""
    given, config = ranges.read(path), params.load()
    first = search.present(given, config)
    given = replace(given, trials=len(search.planned(given, first)) or given.trials)
    slots = checked(given, config, jobs)
    with locks.held(FOLDER, "runs a sweep"):
        tried = f"{given.trials} trials of {', '.join(given.axes)} (search: {given.search})"
        say(f"{tried}; first the data: dvc repro prepare")
        command = [sys.executable, "-m", "pipeline.repro", "prepare"]
        if subprocess.run(command, env=programs.environment(), check=False).returncode:
            raise UserError(
                Fault("dvc repro prepare", "the data could not be made ready", "failed", remedy="see above")
            )
        study = Study(given, config, first, trials.data(config), trials.weights(config, given), slots)
        copy_project(study)
        ended = trials.ranked(in_turn(study) if given.search == "tpe" else together(study))
        table = Path(config.paths.metrics) / "sweep.csv"
        files.write_csv(table, *trials.table(ended))
        print(f"\n{trials.shown_table(ended)}\n", flush=True)
        if not ended[0].results:
            log = study.training(ended[0].trial).kept / runner.LOG
            raise UserError(Fault(str(table), "no trial has a result", "failed", remedy=f"see why: {log}; run again"))
        conclude(study, ended, tested(study, ended[0].trial), path)
        drop(PROJECT)
    return 0


def checked(given: Sweep, config: Params, jobs: int) -> list[Slot]:
    """What each trial at a time may use. Raises UserError if one of the trials cannot run here."""
    if given.search == "tpe" and jobs > 1:
        raise UserError(Fault("--jobs", f"{jobs} × search: tpe", "pair", "each trial waits for the one before", "1"))
    first = search.present(given, config)
    values = [trial.values for trial in search.planned(given, first)] or [first, *search.corners(given)]
    trials.check(config, values, machine.read())
    return runner.slots(config, jobs)


def copy_project(study: Study) -> None:
    """Make PROJECT a copy of the project, which those of the trials are copies of: no later edit is in one of them.

    The prepared data and the folder of the runs are links: no stage of a trial writes the data, and TensorBoard shows
    the trials while they run.
    """
    for path in FOLDER.glob("*/"):
        if path != RESULTS:
            drop(path)
    if workcopy.of_project(PROJECT, {}).config != study.config:
        raise UserError(Fault(str(params.FILE), "changed while the data was made ready", "differs", remedy="run again"))
    paths = study.config.paths
    files.remove(PROJECT / paths.metrics)  # figures of another model
    stages = document.read(dvc_lock.LOCK)["stages"]
    shutil.copyfile(dvc_lock.LOCK, PROJECT / dvc_lock.LOCK)
    document.rewrite(PROJECT / dvc_lock.LOCK, {"stages": {name: stages[name] for name in DATA}})
    if integrity.MEMORY.is_file():  # so packed images are not read once more for each trial
        (PROJECT / integrity.MEMORY).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(integrity.MEMORY, PROJECT / integrity.MEMORY)
    Path(paths.runs).mkdir(parents=True, exist_ok=True)
    for linked in (paths.packed, paths.split, paths.runs, *study.weights):
        if not (PROJECT / linked).exists():
            files.link(PROJECT / linked, Path(linked))


def copy(folder: Path, values: Mapping[str, Any]) -> None:
    """Make the work copy of a trial."""
    shutil.copytree(PROJECT, folder, symlinks=True)
    document.rewrite(folder / params.FILE, values)


def drop(folder: Path) -> None:
    """Remove a work copy as soon as no process works there."""
    workcopy.clear(folder, keep=())
    files.remove(folder)


def together(study: Study) -> list[Done]:
    """Run the trials of a grid or a random search; what each of them gave."""
    chosen = search.planned(study.sweep, study.present)
    left = [trial for trial in chosen if not study.done(study.training(trial)).results]
    say(f"{len(chosen) - len(left)} of {len(chosen)} trials have finished before")
    announce(study, [params.changed(study.config, trial.values).train.epochs for trial in left])
    return run(study, chosen)


def in_turn(study: Study) -> list[Done]:
    """Run trials one after another; each is chosen by the results of those before it. What each of them gave."""
    ended, announced = list[Done](), False
    for number in range(1, study.sweep.trials + 1):
        results = [(done.trial.values, one.val_accuracy) for done in ended for one in done.results]
        trial = search.tpe(study.sweep, study.present, number, results)
        trials.check(study.config, [trial.values], machine.read())
        if not (announced or study.done(study.training(trial)).results):
            announce(study, [study.config.train.epochs] * (study.sweep.trials - number + 1))
            announced = True
        ended += run(study, [trial])
    return ended


def run(study: Study, chosen: Sequence[Trial]) -> list[Done]:
    """Run those of these trials that have no result; what each of them gave."""
    trainings = [study.training(trial) for trial in chosen]
    left = {training.kept: training for training in trainings if not study.done(training).results}
    known = {ref.rpartition("/")[2] for ref in programs.output("git", "for-each-ref", "refs/exps").splitlines()}
    for training in trainings:
        if training.kept not in left and training.name not in known:
            finish(study, training)
    by_folder = {FOLDER / training.name: training for training in left.values()}
    with closing(runner.run_all([training.job() for training in left.values()], study.slots, "sweep")) as runs:
        for ended in runs:
            keep(study, by_folder[ended.job.folder], ended)
    return [study.done(training) for training in trainings]


def announce(study: Study, epochs: Sequence[int]) -> None:
    """Say how long trials with so many epochs take, from a few training steps with the present settings."""
    from pipeline.planning import estimate  # imports what decodes images, which takes a second

    rows = files.read_csv(Path(study.config.paths.metrics) / "images.csv")
    images = Survey("", len(rows), {split: sum(int(row[split]) for row in rows) for split in ("train", "val", "test")})
    if epochs and (parts := estimate.measured_parts(study.config, images)):
        training, *others = (part.seconds for part in parts)
        seconds = sum(training * number / study.config.train.epochs + sum(others) for number in epochs)
        at_once = f", {len(study.slots)} at a time" if len(study.slots) > 1 else ""
        say(f"time of {len(epochs)} trials{at_once}: {estimate.spoken(seconds / len(study.slots))}")


def keep(study: Study, training: Training, ended: Ended) -> None:
    """Keep what a trial gave, or said if it failed, and remove its work copy."""
    folder, result = ended.job.folder, Path(study.config.paths.metrics) / figures.FILES[TrainFigures]
    with files.atomic_folder(training.kept) as new:
        names = [Path(runner.LOG)] if ended.failures else [params.FILE, dvc_lock.LOCK, result]
        workcopy.copy_files(names, folder, new)
    for failure in ended.failures:
        said = f"{failure.value}: {failure.reason}; all it said: {training.kept / runner.LOG}"
        say(f"trial {training.trial.number} has failed: {said}")
    if not ended.failures:
        finish(study, training)
    drop(folder)


def finish(study: Study, training: Training) -> None:
    """Remove the checkpoint of a trial that has a result, and let `dvc exp show` and `make compare` show it."""
    for checkpoint in Path(study.config.paths.runs).glob(f"*-{training.name}-*/*checkpoint.pt"):
        files.remove(checkpoint)
    trials.publish(training.name, training.kept, study.config)


def tested(study: Study, trial: Trial) -> EvalFigures:
    """Evaluate the model of a trial on the test images. Its training comes from DVC's run cache."""
    training = replace(study.training(trial, "best"), title=f"the best one, trial {trial.number}, on the test images")
    folder = FOLDER / training.name
    runner.run_well([training.job(TEST)], study.slots[:1], "sweep")
    on_test = figures.read(folder / study.config.paths.metrics, EvalFigures, "run again")
    trials.publish(training.name, folder, study.config)
    drop(folder)
    return on_test


def conclude(study: Study, ended: Sequence[Done], on_test: EvalFigures, path: Path) -> None:
    """Write the page, and say how good the best one is and how to take it over."""
    paths, best = study.config.paths, ended[0].trial
    counted = files.read_csv(Path(paths.metrics) / "images.csv")
    images = {split: sum(int(row[split]) for row in counted) for split in ("val", "test")}
    words = trials.verdict(ended, study.present, on_test, images)
    take_over = f"python -m pipeline.sweep {shlex.quote(str(path))} --apply && make repro"
    page = Path(paths.reports) / "sweep.html"
    files.write_text(page, sweep_page.written(study.sweep, ended, words, take_over))
    files.write_json(FOLDER / f"{path.stem}.json", {"trial": best.number, "values": best.values})
    print(*words, sep="\n")
    if failed := sum(not done.results for done in ended):
        print(f"{failed} of {len(ended)} trials failed; the next start tries them again")
    print(
        f"\n{'all trials':<18} {Path(paths.metrics) / 'sweep.csv'}\n{'for a browser':<18} {page}\n"
        f"{'take it over':<18} {take_over}"
    )


def apply(path: Path) -> int:
    """Write the settings of the best trial into params.yaml; 0. Raises UserError if the sweep has not ended yet."""
    best = schema.json_of(FOLDER / f"{path.stem}.json", Best, f"run the sweep first: python -m pipeline.sweep {path}")
    config = params.load()
    params.changed(config, best.values)  # refuses a setting that another version had
    old = dict(document.leaves(config.model_dump(mode="json")))
    document.rewrite(params.FILE, best.values)
    changes = [f"{key} {old[key]} → {value}" for key, value in best.values.items() if old[key] != value]
    say(f"{params.FILE} has the settings of trial {best.trial}: {', '.join(changes) or 'as before'}; next: make repro")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of ranges, such as docs/sweep.yaml")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trials at a time (default: 1)")
    parser.add_argument("--apply", action="store_true", help="take over the best trial of a sweep that has ended")
    arguments = parser.parse_args()
    runner.stop_on_signals("finished trials are kept: run again to go on")
    return exit_status(
        "sweep", lambda: apply(arguments.file) if arguments.apply else sweep(arguments.file, arguments.jobs)
    )


if __name__ == "__main__":
    sys.exit(main())
