"""Try settings: a grid, random draws, or a search that learns. The best one by validation is tested once.

    perennial sweep docs/sweep.yaml             writes metrics/sweep.csv and reports/sweep.html
    perennial sweep docs/sweep.yaml --jobs 2    two trials at a time (not with search: tpe)

One trial has the present settings. Each is trained in a work copy of the project (.dvc/tmp/reruns/sweep/), on the data
of this folder. Your files, with params.yaml and what is not committed, stay as they are. Finished trials are not run
again, and an interrupted one goes on from its checkpoint: if this command is stopped or killed, run it again.
"""

import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.config import document, params
from pipeline.config.params import Params, Paths
from pipeline.data import split_report
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures, TrainFigures
from pipeline.running.terminal import columns
from pipeline.studies import home, ranges, runner, search, store, sweep_page, trials
from pipeline.studies.ranges import Sweep, Trial
from pipeline.studies.runner import Slot
from pipeline.studies.store import Study, Training
from pipeline.studies.trials import TrialResult

EXAMPLE = "docs/sweep.yaml"
TRAIN = "weights", "features", "train"  # the stages of a trial
TEST = *TRAIN, "evaluate"  # of the best one
RUNS = Path(Paths.runs)  # TensorBoard shows the trials while they run
DATA = ("download", "split", "prepare")  # what all trials read
TRAIN_FILE, EVAL_FILE = (str(figures.path(Paths.metrics, kind)) for kind in (TrainFigures, EvalFigures))


@dataclass(frozen=True)
class Runs:
    """A sweep that runs: its settings, and the study of its trials."""

    sweep: Sweep
    config: Params
    present: Mapping[str, Any]  # the values that params.yaml has
    study: Study

    def training(self, trial: Trial) -> Training:
        """The training of a trial; in training it reads no test image."""
        number = f"{trial.number:0{len(str(self.sweep.trials))}}"
        title = f"trial {trial.number} of {self.sweep.trials} ({trials.describe(trial.values)})"
        return Training(trials.name(self.sweep.name, number), trial.values, title)

    def result(self, trial: Trial) -> TrialResult:
        """The result of a trial: without figures, if it has not finished."""
        training = self.training(trial)
        folder, has_result = self.study.result(training), bool(self.study.hashes(training))
        figures_of_trial = (figures.read(folder / Paths.metrics, TrainFigures),) if has_result else ()
        return TrialResult(trial, figures_of_trial, folder)


def say(sentence: str) -> None:
    print(f"sweep: {sentence}", flush=True)


def sweep(path: Path, jobs: int, on: str = "") -> int:
    """Run every trial that has no result yet, rank them, and test the best one. Returns 0.

    Raises UserError if no trial has a result.
    """
    plan, config = ranges.read(path), params.load()
    first = search.present_values(plan, config)
    chosen = search.plan(plan, first)
    plan = replace(plan, trials=len(chosen) or plan.trials)
    slots = slots_of_trials(plan, config, jobs, on)
    with store.study_folder("sweep", "sweep") as folder:
        say(f"{plan.trials} trials of {', '.join(plan.axes)} (search: {plan.search}); first the data")
        own = {path: files.sha256(Path(path)) for path in trials.weights(config, plan)}
        study = store.of_project("sweep", folder, {}, slots, first=DATA)
        study = replace(study, runs=RUNS, stages=TRAIN, outputs=(TRAIN_FILE,), others={"weights": own})
        runs = Runs(plan, config, first, study)
        best_first = trials.sort_by_rank(run(runs, chosen) if chosen else search_by_results(runs))
        table = Path(config.paths.metrics) / "sweep.csv"
        files.write_csv(table, *trials.table(best_first))
        print("", *columns(trials.text_table(best_first)), "", sep="\n", flush=True)
        if not best_first[0].figures:
            log = best_first[0].folder / runner.LOG
            raise UserError(Fault(str(table), "no trial has a result", "failed", remedy=f"see why: {log}; run again"))
        conclude(runs, best_first, test_best(runs, best_first[0].trial))
    return 0


def slots_of_trials(plan: Sweep, config: Params, jobs: int, on: str = "") -> list[Slot]:
    """The slots of so many trials at the same time. Raises UserError if a trial cannot run here."""
    if plan.search == "tpe" and jobs > 1:
        raise UserError(Fault("--jobs", f"{jobs} × search: tpe", "pair", "each trial waits for the one before", "1"))
    first = search.present_values(plan, config)
    values = [trial.values for trial in search.plan(plan, first)] or [first, *search.corners(plan)]
    trials.check(config, values, runner.machine_of(on))
    return runner.slots(config, jobs, on)


def search_by_results(runs: Runs) -> list[TrialResult]:
    """Run trials one after another, each with values that follow from the results before it. Returns all results."""
    results = list[TrialResult]()
    for number in range(1, runs.sweep.trials + 1):
        accuracies = [(result.trial.values, one.val_accuracy) for result in results for one in result.figures]
        results += run(runs, [search.tpe(runs.sweep, runs.present, number, accuracies)])
    return results


def run(runs: Runs, plan: Sequence[Trial]) -> list[TrialResult]:
    """Run those of these trials that have no result. Returns the result of each. A trial that fails ends no other."""
    by_training = {runs.training(trial).name: trial for trial in plan}
    for training, folder, failures in store.run(runs.study, [runs.training(trial) for trial in plan]):
        for fault in failures:
            number, log = by_training[training.name].number, folder / runner.LOG
            say(f"trial {number} has failed: {fault.value}: {fault.reason}; its log: {log}")
    return list(map(runs.result, plan))


def test_best(runs: Runs, trial: Trial) -> EvalFigures:
    """The test figures of a trial. Its training comes from DVC's run cache."""
    tested = replace(runs.study, slots=runs.study.slots[:1], stages=TEST, outputs=(TRAIN_FILE, EVAL_FILE))
    name, title = trials.name(runs.sweep.name, "best"), f"the best one, trial {trial.number}, on the test images"
    training = Training(name, trial.values, title)
    (result,) = store.results(tested, [training])
    return figures.read(result.folder / Paths.metrics, EvalFigures)


def conclude(runs: Runs, best_first: Sequence[TrialResult], on_test: EvalFigures) -> None:
    """Write the page, and print how good the best trial is and how to take it over."""
    paths, best = runs.config.paths, best_first[0].trial
    images = figures.image_counts(files.read_csv(runs.study.source.folder / Paths.metrics / split_report.IMAGES))
    sentences = trials.conclusion(best_first, runs.present, on_test, images)
    values = {key: value for key, value in best.values.items() if value != runs.present[key]}
    words = [f"{key}={document.value_text(value)}" for key, value in values.items()]
    name = trials.name(runs.sweep.name, f"trial{best.number}")
    take_over = shlex.join(["perennial", "try", name, *words] if words else ["perennial", "repro"])
    text = sweep_page.page(runs.sweep, best_first, images["val"], sentences, take_over)
    page = home.write_page(runs.config, "sweep.html", text)
    print(*sentences, sep="\n")
    if failed := sum(not result.figures for result in best_first):
        print(f"{failed} of {len(best_first)} trials failed; the next start tries them again")
    print(
        f"\n{'all trials':<18} {Path(paths.metrics) / 'sweep.csv'}\n{'for a browser':<18} {page}\n"
        f"{'take it over':<18} {take_over}"
    )


def main(arguments: Namespace) -> int:
    runner.stop_on_signals("finished trials are kept: run again to go on")
    return sweep(Path(arguments.file or EXAMPLE), arguments.jobs, arguments.on)
