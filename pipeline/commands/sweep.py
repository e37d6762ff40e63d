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

from pipeline.base import files, locks, schema
from pipeline.base.errors import Fault, UserError
from pipeline.checks import machine
from pipeline.config import document, params
from pipeline.config.params import Params
from pipeline.data import split_report
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures, TrainFigures
from pipeline.planning.survey import Survey
from pipeline.studies import ranges, runner, search, sweep_page, trial_copies, trials, workcopy
from pipeline.studies.ranges import Sweep, Trial
from pipeline.studies.runner import Job, Outcome, Slot
from pipeline.studies.trials import TrialResult
from pipeline.versioning import children, dvc_lock, identity, programs

TRAIN = "weights", "features", "train"  # the stages of a trial
TEST = *TRAIN, "evaluate"  # of the best one


@dataclass(frozen=True)
class Best:
    """The best trial of a sweep."""

    __pydantic_config__ = schema.STRICT

    ranges: schema.Sha256  # of the file of ranges
    trial: int
    values: dict[str, Any]  # section.key → value


@dataclass(frozen=True)
class Study:
    """A sweep that runs: its settings, the hashes of its data and code, and what each trial may use."""

    sweep: Sweep
    config: Params
    present: Mapping[str, Any]  # the values that params.yaml has
    hashes: Mapping[str, str]  # of what trials read
    code: Mapping[str, str]  # hashes of the code of a training
    slots: Sequence[Slot]

    def result(self, trial: Trial, word: str = "") -> TrialResult:
        """The result of a trial: without figures, if it has not finished. `word` stands for its number in the name."""
        digest = trials.digest(params.with_values(self.config, trial.values), self.hashes, self.code)
        number = f"{trial.number:0{len(str(self.sweep.trials))}}"
        folder = trial_copies.RESULTS / digest
        metrics, remedy = folder / self.config.paths.metrics, f"rm -r {folder}, then run again"
        figures_of_trial = (figures.read(metrics, TrainFigures, remedy),) if metrics.is_dir() else ()
        return TrialResult(trial, trials.name(self.sweep.name, word or number, digest), figures_of_trial, folder)


def job_of(result: TrialResult, title: str, stages: tuple[str, ...] = TRAIN) -> Job:
    """The job that runs a trial; in training it reads no test image. `title`: for messages."""
    copy = trial_copies.FOLDER / result.experiment
    environ = {"DVC_EXP_NAME": result.experiment}  # in the name of the folder in runs/, as for experiments of DVC
    prepare = partial(workcopy.copy_again, trial_copies.PROJECT, copy, result.trial.values)
    return Job(title, copy, stages, environ=environ, prepare=prepare)


def say(sentence: str) -> None:
    print(f"sweep: {sentence}", flush=True)


def sweep(path: Path, jobs: int, on: str = "") -> int:
    """Run every trial that has no result yet, rank them, and test the best one. Returns 0.

    Raises UserError if no trial has a result.
    """
    plan, config = ranges.read(path), params.load()
    first = search.present_values(plan, config)
    plan = replace(plan, trials=len(search.plan(plan, first)) or plan.trials)
    slots = slots_of_trials(plan, config, jobs, on)
    with locks.hold(trial_copies.FOLDER, "runs a sweep"):
        trials_in_words = f"{plan.trials} trials of {', '.join(plan.axes)} (search: {plan.search})"
        say(f"{trials_in_words}; first the data: perennial repro prepare")
        files.remove(best_file(path))
        command = [sys.executable, "-m", "pipeline", "repro", "prepare"]
        if children.run(command, env=programs.environment()):
            value = "the data could not be made ready"
            raise UserError(Fault("perennial repro prepare", value, "failed", remedy="see above"))
        weights = trials.weights(config, plan)
        trial_copies.create_source(config, weights)
        with chdir(trial_copies.PROJECT):
            hashes, code = trials.hashes(config, weights), identity.code(identity.TRAIN)
        study = Study(plan, config, first, hashes, code, slots)
        best_first = trials.sort_by_rank(search_by_results(study) if plan.search == "tpe" else run_plan(study))
        table = Path(config.paths.metrics) / "sweep.csv"
        files.write_csv(table, *trials.table(best_first))
        print(f"\n{trials.text_table(best_first)}\n", flush=True)
        if not best_first[0].figures:
            log = best_first[0].folder / runner.LOG
            raise UserError(Fault(str(table), "no trial has a result", "failed", remedy=f"see why: {log}; run again"))
        conclude(study, best_first, test_best(study, best_first[0].trial), path)
        trial_copies.drop_all()
    return 0


def slots_of_trials(plan: Sweep, config: Params, jobs: int, on: str = "") -> list[Slot]:
    """The slots of so many trials at the same time. Raises UserError if a trial cannot run here."""
    if plan.search == "tpe" and jobs > 1:
        raise UserError(Fault("--jobs", f"{jobs} × search: tpe", "pair", "each trial waits for the one before", "1"))
    first = search.present_values(plan, config)
    values = [trial.values for trial in search.plan(plan, first)] or [first, *search.corners(plan)]
    trials.check(config, values, runner.machine_of(on))
    return runner.slots(config, jobs, on)


def run_plan(study: Study) -> list[TrialResult]:
    """Run the trials of a grid or a random search. Returns the result of each."""
    plan = search.plan(study.sweep, study.present)
    remaining = [trial for trial in plan if not study.result(trial).figures]
    say(f"{len(plan) - len(remaining)} of {len(plan)} trials have finished before")
    announce(study, [params.with_values(study.config, trial.values).train.epochs for trial in remaining])
    return run(study, plan)


def search_by_results(study: Study) -> list[TrialResult]:
    """Run trials one after another, each with values that follow from the results before it. Returns all results."""
    results, is_announced = list[TrialResult](), False
    for number in range(1, study.sweep.trials + 1):
        accuracies = [(result.trial.values, one.val_accuracy) for result in results for one in result.figures]
        trial = search.tpe(study.sweep, study.present, number, accuracies)
        trials.check(study.config, [trial.values], None if study.slots[0].sbatch else machine.read())
        if not (is_announced or study.result(trial).figures):
            announce(study, [study.config.train.epochs] * (study.sweep.trials - number + 1))
            is_announced = True
        results += run(study, [trial])
    return results


def run(study: Study, plan: Sequence[Trial]) -> list[TrialResult]:
    """Run those of these trials that have no result. Returns the result of each."""
    names = {ref.rpartition("/")[2] for ref in programs.output("git", "for-each-ref", "refs/exps").splitlines()}
    jobs, by_folder = list[Job](), dict[Path, TrialResult]()
    for result in map(study.result, plan):
        if not result.figures:
            title = f"trial {result.trial.number} of {study.sweep.trials} ({trials.describe(result.trial.values)})"
            jobs.append(job_of(result, title))
            by_folder[jobs[-1].folder] = result
        elif result.experiment not in names:
            publish(study, result)
    with closing(runner.run_all(jobs, study.slots, "sweep")) as outcomes:
        for outcome in outcomes:
            save_result(study, by_folder[outcome.job.folder], outcome)
    return list(map(study.result, plan))


def announce(study: Study, epochs: Sequence[int]) -> None:
    """Print how long trials with so many epochs take, from a few training steps with the present settings."""
    from pipeline.planning import estimate  # imports what decodes images, which takes a second

    if not epochs or study.slots[0].sbatch:  # nobody knows yet how fast the nodes are
        return
    rows = image_rows(study.config)
    with runner.cores_of(study.slots[0]):
        parts = estimate.measure_parts(study.config, Survey("", len(rows), figures.image_counts(rows)))
    if parts:
        training, *others = (part.seconds for part in parts)
        mean = training * statistics.mean(epochs) / study.config.train.epochs + sum(others)
        at_once = f", {len(study.slots)} at a time" if len(study.slots) > 1 else ""
        seconds = mean * math.ceil(len(epochs) / len(study.slots))
        say(f"time of {len(epochs)} trials{at_once}: {estimate.time_in_words(seconds)}")


def image_rows(config: Params) -> list[dict[str, str]]:
    """The rows of images.csv, one for each class."""
    return files.read_csv(Path(config.paths.metrics) / split_report.IMAGES)


def save_result(study: Study, result: TrialResult, outcome: Outcome) -> None:
    """Save the results of a trial, or its log if it failed, and remove its work copy."""
    copy, train_file = outcome.job.folder, figures.path(study.config.paths.metrics, TrainFigures)
    with files.atomic_folder(result.folder) as new:
        names = [Path(runner.LOG)] if outcome.failures else [params.FILE, dvc_lock.LOCK, train_file]
        workcopy.copy_files(names, copy, new)
    for failure in outcome.failures:
        log = result.folder / runner.LOG
        say(f"trial {result.trial.number} has failed: {failure.value}: {failure.reason}; its log: {log}")
    if not outcome.failures:
        publish(study, result)
    trial_copies.drop(copy)


def publish(study: Study, result: TrialResult) -> None:
    """Remove the checkpoint of a trial that has a result, and let `dvc exp show` and `perennial compare` show it."""
    for checkpoint in Path(study.config.paths.runs).glob(f"*-{result.experiment}-*/*checkpoint.pt"):
        files.remove(checkpoint)
    trials.publish(result.experiment, result.folder, study.config)


def test_best(study: Study, trial: Trial) -> EvalFigures:
    """The test figures of a trial. Its training comes from DVC's run cache."""
    result = study.result(trial, "best")
    job = job_of(result, f"the best one, trial {trial.number}, on the test images", TEST)
    runner.run_or_raise([job], study.slots[:1], "sweep")
    on_test = figures.read(job.folder / study.config.paths.metrics, EvalFigures, "run again")
    trials.publish(result.experiment, job.folder, study.config)
    trial_copies.drop(job.folder)
    return on_test


def conclude(study: Study, best_first: Sequence[TrialResult], on_test: EvalFigures, path: Path) -> None:
    """Write the page, and print how good the best trial is and how to take it over."""
    paths, best = study.config.paths, best_first[0].trial
    images = figures.image_counts(image_rows(study.config))
    sentences = trials.conclusion(best_first, study.present, on_test, images)
    take_over = f"perennial sweep {shlex.quote(str(path))} --apply && perennial repro"
    page = Path(paths.reports) / "sweep.html"
    files.write_text(page, sweep_page.page(study.sweep, best_first, sentences, take_over))
    content = {"ranges": files.sha256(path), "trial": best.number, "values": best.values}
    files.write_json(best_file(path), content)
    print(*sentences, sep="\n")
    if failed := sum(not result.figures for result in best_first):
        print(f"{failed} of {len(best_first)} trials failed; the next start tries them again")
    print(
        f"\n{'all trials':<18} {Path(paths.metrics) / 'sweep.csv'}\n{'for a browser':<18} {page}\n"
        f"{'take it over':<18} {take_over}"
    )


def best_file(path: Path) -> Path:
    """The file with the best trial of the sweep of this file of ranges."""
    return trial_copies.FOLDER / f"{path.stem}.json"


def apply(path: Path) -> int:
    """Write the settings of the best trial into params.yaml. Returns 0.

    Raises UserError if the sweep has not ended yet.
    """
    ranges.read(path)
    remedy = f"run the sweep first: perennial sweep {path}"
    best = schema.json_of(best_file(path), Best, remedy)
    if best.ranges != files.sha256(path):
        raise UserError(Fault(str(path), "not the file of the sweep that has ended", "differs", remedy=remedy))
    config = params.load()
    params.with_values(config, best.values)  # refuses a setting that another version had
    old = dict(document.leaves(config.model_dump(mode="json")))
    document.rewrite(params.FILE, best.values)
    changes = ", ".join(f"{key} {old[key]} → {value}" for key, value in best.values.items() if old[key] != value)
    say(f"{params.FILE} has the settings of trial {best.trial}: {changes or 'as before'}; next: perennial repro")
    return 0


def main(arguments: Namespace) -> int:
    file = Path(arguments.file)
    runner.stop_on_signals("finished trials are kept: run again to go on")
    return apply(file) if arguments.apply else sweep(file, arguments.jobs, arguments.on)
