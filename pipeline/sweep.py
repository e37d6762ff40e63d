"""Try settings: a grid, random draws, or a search that learns. The best one by validation is tested once.

    python -m pipeline.sweep docs/sweep.yaml             writes metrics/sweep.csv and reports/sweep.html
    python -m pipeline.sweep docs/sweep.yaml --jobs 2    two trials at a time (not with search: tpe)

Each trial is an experiment of DVC, which its queue runs. Finished trials are not run again. Ctrl-C ends what runs; run
the command again to go on. If this command is killed, the queue goes on without it.
"""

import argparse
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base import files, locks, programs
from pipeline.base.errors import UserError, exit_status
from pipeline.config import document, machine, params
from pipeline.config.machine import Machine
from pipeline.config.params import Params
from pipeline.evaluation.figures import EvalFigures, TrainFigures
from pipeline.studies import experiments, following, queueing, ranges, sweep_page, tpe, trials
from pipeline.studies.experiments import Queue
from pipeline.studies.following import Order
from pipeline.studies.ranges import Sweep, Trial
from pipeline.studies.trials import Done

TRAIN, TEST = ("weights", "train"), ("weights", "train", "evaluate")  # the stages of a trial, and of the best one


def say(sentence: str) -> None:
    print(f"sweep: {sentence}", flush=True)


@dataclass(frozen=True)
class Study:
    """A sweep that runs: what is tried, with which data and code, and how many trials at a time."""

    sweep: Sweep
    config: Params
    commit: str  # where all trials begin
    shared: Mapping[str, str]  # hashes of data and code
    weights: Mapping[str, str]  # hashes of the user's own weights files
    machine: Machine
    jobs: int
    ask: threading.Event = field(default_factory=threading.Event)  # set when a signal asks to stop

    def order(self, trial: Trial) -> Order:
        """The experiment of a trial: no test image is read."""
        number = f"{trial.number:0{len(str(self.sweep.trials))}}"
        title = f"trial {trial.number} of {self.sweep.trials} ({trials.described(trial.values)})"
        return self._order(trial, number, title, TRAIN)

    def test(self, trial: Trial) -> Order:
        """The experiment that evaluates the model of a trial. Its training comes from DVC's cache."""
        return self._order(trial, "best", f"the best one, trial {trial.number}, on the test images", TEST)

    def _order(self, trial: Trial, word: str, title: str, targets: Sequence[str]) -> Order:
        config = params.changed(self.config, trial.values)
        name = trials.name(self.sweep.name, word, config, self.shared, self.weights)
        return Order(name, title, trial.values, targets, trials.own_weights(config.train.weights))


def sweep(path: Path, jobs: int) -> int:
    """Run every trial that has no result yet, rank them, and test the best one; 0. Raises UserError if none has one."""
    if not programs.TEMPORARY.parent.is_dir():
        raise UserError(f"{programs.TEMPORARY.parent}: not found; run from the project's folder, where it lies")
    with locks.held(programs.TEMPORARY / "sweep", "runs a sweep"):
        queueing.wait_for_others(say)
        if note := queueing.repair():
            say(note)
        study = prepared(path, jobs)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: study.ask.set())
        with experiments.opened(study.commit) as queue:
            ended = trials.ranked(run(study, queue))
            table = Path(study.config.paths.metrics) / "sweep.csv"
            files.write_csv(table, *trials.table(ended))  # Git ignores it; else nothing could be queued after this
            print(f"\n{trials.shown_table(ended)}\n", flush=True)
            if not ended[0].results:
                raise UserError(f"no trial has a result ({table}); why: dvc queue logs {ended[0].experiment}")
            test = study.test(ended[0].trial)
            following.run(queue, [test], 1, study.ask, say)
            conclude(study, ended, test.name, experiments.finished(queue))
    return 0


def prepared(path: Path, jobs: int) -> Study:
    """The study of a file of ranges, with its data made ready. Raises UserError before anything is queued."""
    found, raw, here = ranges.read(path), document.read(params.FILE), machine.read()
    config = params.parse(raw)
    if found.search == "tpe":
        tpe.check()
        if jobs > 1:
            raise UserError(f"--jobs {jobs} × search: tpe, where each trial waits for the one before; allowed: 1")
    trials.check_written(raw, found.axes)
    trials.check(config, [trial.values for trial in planned(found)] or list(ranges.corners(found)), here)
    say(f"{found.trials} trials of {', '.join(found.axes)} (search: {found.search}); first the data: dvc repro prepare")
    command = [sys.executable, "-m", "pipeline.repro", "prepare"]
    if subprocess.run(command, env=programs.environment(), check=False).returncode:
        raise UserError("the data could not be made ready; see above")
    commit = experiments.head()
    queueing.check_committed()
    return Study(found, config, commit, trials.data(config), trials.weights(config, found), here, jobs)


def planned(found: Sweep) -> list[Trial]:
    """All trials, as far as they are known before the first one has run."""
    if found.search == "grid":
        return ranges.grid(found)
    return ranges.random(found, found.trials) if found.search == "random" else []


def run(study: Study, queue: Queue) -> list[Done]:
    """Run the trials; what each of them gave."""
    if study.sweep.search == "tpe":
        return in_turn(study, queue)
    chosen = planned(study.sweep)
    orders = [study.order(trial) for trial in chosen]
    count = len({order.name for order in orders} & {*experiments.finished(queue)})
    say(f"{count} of {len(orders)} trials have finished before")
    following.run(queue, orders, study.jobs, study.ask, say)
    finished = experiments.finished(queue)
    return [result(study, trial, order.name, finished) for trial, order in zip(chosen, orders, strict=True)]


def in_turn(study: Study, queue: Queue) -> list[Done]:
    """Run trials one after another; each is chosen by the results of those before it."""
    ended: list[Done] = []
    for number in range(1, study.sweep.trials + 1):
        seen = [(done.trial.values, one.val_accuracy) for done in ended for one in done.results]
        trial = tpe.proposed(study.sweep, number, seen)
        trials.check(study.config, [trial.values], study.machine)
        following.run(queue, [order := study.order(trial)], 1, study.ask, say)
        ended.append(result(study, trial, order.name, experiments.finished(queue)))
    return ended


def result(study: Study, trial: Trial, name: str, finished: Mapping[str, str]) -> Done:
    """What a trial gave: one result, or none."""
    if name not in finished:
        return Done(trial, name, ())
    return Done(trial, name, (trials.figures_of(finished[name], study.config, TrainFigures),))


def conclude(study: Study, ended: Sequence[Done], name: str, finished: Mapping[str, str]) -> None:
    """Write the page, and say how good the best one is and how to take it over."""
    paths = study.config.paths
    if name not in finished:
        raise UserError(f"the best trial could not be tested; why: dvc queue logs {name}; then run again")
    tested = trials.figures_of(finished[name], study.config, EvalFigures)
    counted = files.read_csv(Path(paths.metrics) / "images.csv")
    images = {split: sum(int(row[split]) for row in counted) for split in ("val", "test")}
    words = trials.verdict(ended, tested, images)
    page = Path(paths.reports) / "sweep.html"
    files.write_text(page, sweep_page.written(study.sweep, ended, words, name))
    failed = sum(not done.results for done in ended)
    print(*words, sep="\n")
    if failed:
        print(f"{failed} of {len(ended)} trials failed; the next start tries them again")
    print(
        f"\n{'all trials':<18} {Path(paths.metrics) / 'sweep.csv'}\n{'for a browser':<18} {page}\n"
        f"{'take it over':<18} dvc exp apply {name} && make repro"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of ranges, such as docs/sweep.yaml")
    parser.add_argument("--jobs", type=int, default=1, choices=range(1, 65), metavar="N", help="trials at a time")
    arguments = parser.parse_args()
    return exit_status("sweep", lambda: sweep(arguments.file, arguments.jobs))


if __name__ == "__main__":
    sys.exit(main())
