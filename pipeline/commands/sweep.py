"""Try settings: a grid, random draws, or a search that learns. The best one by validation is tested once.

    perennial sweep docs/sweep.yaml             writes metrics/sweep.csv and reports/sweep.html
    perennial sweep docs/sweep.yaml --jobs 2    two trials at a time (not with search: tpe)
    perennial sweep docs/sweep.yaml --apply     writes the settings of its best trial into params.yaml

One trial has the present settings. Each is trained in a work copy of the project (.dvc/tmp/reruns/sweep/), on the data
of this folder. Your files, with params.yaml and what is not committed, stay as they are. Finished trials are not run
again, and an interrupted one goes on from its checkpoint: if this command is stopped or killed, run it again.
"""

import math
import shlex
import statistics
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import chdir, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.base import children, files, locks, schema
from pipeline.base.errors import Fault, UserError
from pipeline.config import document, machine, params
from pipeline.config.params import Params
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures, TrainFigures
from pipeline.planning.survey import Survey
from pipeline.reruns import ranges, runner, search, sweep_page, trial_copies, trials, workcopy
from pipeline.reruns.ranges import Sweep, Trial
from pipeline.reruns.runner import Ended, Job, Slot
from pipeline.reruns.trials import Done
from pipeline.versioning import dvc_lock, programs

TRAIN, TEST = ("weights", "train"), ("weights", "train", "evaluate")  # the stages of a trial, and of the best one


@dataclass(frozen=True)
class Best:
    """The best trial of a sweep."""

    __pydantic_config__ = schema.STRICT

    ranges: schema.Sha256  # of the file of ranges
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
        prepare = partial(trial_copies.copy, trial_copies.FOLDER / self.name, self.trial.values)
        return Job(self.title, trial_copies.FOLDER / self.name, stages, environ=environ, prepare=prepare)


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
        digest = trials.digest(params.with_values(self.config, trial.values), self.shared, self.weights)
        title = f"trial {trial.number} of {self.sweep.trials} ({trials.described(trial.values)})"
        number = f"{trial.number:0{len(str(self.sweep.trials))}}"
        return Training(
            trial, title, trials.name(self.sweep.name, word or number, digest), trial_copies.RESULTS / digest
        )

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
    with locks.hold(trial_copies.FOLDER, "runs a sweep"):
        tried = f"{given.trials} trials of {', '.join(given.axes)} (search: {given.search})"
        say(f"{tried}; first the data: dvc repro prepare")
        files.remove(best_of(path))
        command = [sys.executable, "-m", "pipeline", "repro", "prepare"]
        if children.run(command, env=programs.environment()):
            raise UserError(
                Fault("dvc repro prepare", "the data could not be made ready", "failed", remedy="see above")
            )
        own = trials.weights(config, given)
        trial_copies.copy_project(config, own)
        with chdir(trial_copies.PROJECT):
            hashes = {name: files.sha256(Path(name)) for name in own}
            study = Study(given, config, first, trials.data(config), hashes, slots)
        ended = trials.ranked(in_turn(study) if given.search == "tpe" else together(study))
        table = Path(config.paths.metrics) / "sweep.csv"
        files.write_csv(table, *trials.table(ended))
        print(f"\n{trials.shown_table(ended)}\n", flush=True)
        if not ended[0].results:
            log = study.training(ended[0].trial).kept / runner.LOG
            raise UserError(Fault(str(table), "no trial has a result", "failed", remedy=f"see why: {log}; run again"))
        conclude(study, ended, tested(study, ended[0].trial), path)
        trial_copies.drop_all()
    return 0


def checked(given: Sweep, config: Params, jobs: int) -> list[Slot]:
    """What each trial at a time may use. Raises UserError if one of the trials cannot run here."""
    if given.search == "tpe" and jobs > 1:
        raise UserError(Fault("--jobs", f"{jobs} × search: tpe", "pair", "each trial waits for the one before", "1"))
    first = search.present(given, config)
    values = [trial.values for trial in search.planned(given, first)] or [first, *search.corners(given)]
    trials.check(config, values, machine.read())
    return runner.slots(config, jobs)


def together(study: Study) -> list[Done]:
    """Run the trials of a grid or a random search; what each of them gave."""
    chosen = search.planned(study.sweep, study.present)
    left = [trial for trial in chosen if not study.done(study.training(trial)).results]
    say(f"{len(chosen) - len(left)} of {len(chosen)} trials have finished before")
    announce(study, [params.with_values(study.config, trial.values).train.epochs for trial in left])
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
    by_folder = {trial_copies.FOLDER / training.name: training for training in left.values()}
    with closing(runner.run_all([training.job() for training in left.values()], study.slots, "sweep")) as runs:
        for ended in runs:
            keep(study, by_folder[ended.job.folder], ended)
    return [study.done(training) for training in trainings]


def announce(study: Study, epochs: Sequence[int]) -> None:
    """Say how long trials with so many epochs take, from a few training steps with the present settings."""
    from pipeline.planning import estimate  # imports what decodes images, which takes a second

    rows = files.read_csv(Path(study.config.paths.metrics) / "images.csv")
    images = Survey("", len(rows), {split: sum(int(row[split]) for row in rows) for split in ("train", "val", "test")})
    with runner.using(study.slots[0]):
        parts = estimate.measure_parts(study.config, images) if epochs else []
    if parts:
        training, *others = (part.seconds for part in parts)
        mean = training * statistics.mean(epochs) / study.config.train.epochs + sum(others)
        at_once = f", {len(study.slots)} at a time" if len(study.slots) > 1 else ""
        seconds = mean * math.ceil(len(epochs) / len(study.slots))
        say(f"time of {len(epochs)} trials{at_once}: {estimate.time_in_words(seconds)}")


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
    trial_copies.drop(folder)


def finish(study: Study, training: Training) -> None:
    """Remove the checkpoint of a trial that has a result, and let `dvc exp show` and `perennial compare` show it."""
    for checkpoint in Path(study.config.paths.runs).glob(f"*-{training.name}-*/*checkpoint.pt"):
        files.remove(checkpoint)
    trials.publish(training.name, training.kept, study.config)


def tested(study: Study, trial: Trial) -> EvalFigures:
    """Evaluate the model of a trial on the test images. Its training comes from DVC's run cache."""
    training = replace(study.training(trial, "best"), title=f"the best one, trial {trial.number}, on the test images")
    folder = trial_copies.FOLDER / training.name
    runner.run_well([training.job(TEST)], study.slots[:1], "sweep")
    on_test = figures.read(folder / study.config.paths.metrics, EvalFigures, "run again")
    trials.publish(training.name, folder, study.config)
    trial_copies.drop(folder)
    return on_test


def conclude(study: Study, ended: Sequence[Done], on_test: EvalFigures, path: Path) -> None:
    """Write the page, and say how good the best one is and how to take it over."""
    paths, best = study.config.paths, ended[0].trial
    counted = files.read_csv(Path(paths.metrics) / "images.csv")
    images = {split: sum(int(row[split]) for row in counted) for split in ("val", "test")}
    words = trials.verdict(ended, study.present, on_test, images)
    take_over = f"perennial sweep {shlex.quote(str(path))} --apply && perennial repro"
    page = Path(paths.reports) / "sweep.html"
    files.write_text(page, sweep_page.written(study.sweep, ended, words, take_over))
    content = {"ranges": files.sha256(path), "trial": best.number, "values": best.values}
    files.write_json(best_of(path), content)
    print(*words, sep="\n")
    if failed := sum(not done.results for done in ended):
        print(f"{failed} of {len(ended)} trials failed; the next start tries them again")
    print(
        f"\n{'all trials':<18} {Path(paths.metrics) / 'sweep.csv'}\n{'for a browser':<18} {page}\n"
        f"{'take it over':<18} {take_over}"
    )


def best_of(path: Path) -> Path:
    """The file with the best trial of the sweep of this file of ranges."""
    return trial_copies.FOLDER / f"{path.stem}.json"


def apply(path: Path) -> int:
    """Write the settings of the best trial into params.yaml; 0. Raises UserError if the sweep has not ended yet."""
    ranges.read(path)
    remedy = f"run the sweep first: perennial sweep {path}"
    best = schema.json_of(best_of(path), Best, remedy)
    if best.ranges != files.sha256(path):
        raise UserError(Fault(str(path), "not the file of the sweep that has ended", "differs", remedy=remedy))
    config = params.load()
    params.with_values(config, best.values)  # refuses a setting that another version had
    old = dict(document.leaves(config.model_dump(mode="json")))
    document.rewrite(params.FILE, best.values)
    changed = ", ".join(f"{key} {old[key]} → {value}" for key, value in best.values.items() if old[key] != value)
    say(f"{params.FILE} has the settings of trial {best.trial}: {changed or 'as before'}; next: perennial repro")
    return 0


def main(arguments: Namespace) -> int:
    file = Path(arguments.file)
    runner.stop_on_signals("finished trials are kept: run again to go on")
    return apply(file) if arguments.apply else sweep(file, arguments.jobs)
