"""`perennial sweep`: what it refuses, and real sweeps: stopped and started again, taken over."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.base import files, locks
from pipeline.base.errors import STOPPED, UserError
from pipeline.commands import sweep
from pipeline.config import params
from pipeline.evaluation import figures
from pipeline.evaluation.figures import TrainFigures
from pipeline.studies import ranges, store, workcopy
from tests.conftest import on_cpu, read_params, write_params
from tests.helpers import in_process, studies
from tests.helpers.projects import call, commit, create_project
from tests.helpers.refusals import refuses
from tests.helpers.trainings import wait_for, working_in

SMALL: dict[str, Any] = {
    "data__source": "synthetic", "data__synthetic__count": 60, "data__synthetic__size": 40, "train__epochs": 3,
    "run__epoch_checkpoint_seconds": 0,
}  # fmt: skip
RANDOM = {"search": "random", "trials": 3, "params": {"train.lr": {"from": 0.005, "to": 0.05, "scale": "log"}}}
LEARNING = {"search": "tpe", "trials": 2, "params": {"train.lr": {"from": 0.01, "to": 0.1}}}
SWEEP = ("sweep", "tried.yaml")
COMMAND = (sys.executable, "-m", "pipeline", *SWEEP)
COPIES = workcopy.FOLDER / "sweep"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder, as far as a sweep looks at it before DVC runs."""
    write_params(tmp_path / "params.yaml", on_cpu(read_params()))
    write_params(tmp_path / "tried.yaml", LEARNING)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_cannot_run_is_refused_before_any_trial(folder: Path) -> None:
    """A search that learns has one trial at a time, and may choose both ends of a range. A second sweep is refused."""
    file = folder / "tried.yaml"
    with refuses(("--jobs", "pair")):
        sweep.sweep(file, 2)
    with locks.hold(COPIES, "runs a sweep"), pytest.raises(UserError, match=f"process {os.getpid()} "):
        sweep.sweep(file, 1)
    ends = {"train.lr": [0.1], "train.epochs": {"from": 1, "to": 10**12}}
    write_params(file, {"search": "tpe", "trials": 2, "params": ends})
    with pytest.raises(UserError, match=r"train\.epochs"):
        sweep.slots_of_trials(ranges.read(file), params.load(), 1)


def project(folder: Path, content: Any, **changes: Any) -> Path:
    """A project with this file of ranges and with prepared data, committed, and with edits that are not."""
    create_project(folder, **(SMALL | changes))
    write_params(folder / "tried.yaml", content)
    in_process.run_forked(folder, "prepare")
    commit(folder)
    (folder / "README.md").write_text("mine\n")
    (folder / "pipeline/mine.py").write_text("MINE = 1\n")
    call(folder, "git", "add", "README.md")
    return folder


def state(folder: Path) -> tuple[str, str]:
    """What Git sees of the user's folder, with every byte of what is not committed."""
    return call(folder, "git", "status", "--porcelain").stdout, call(folder, "git", "diff", "HEAD").stdout


def finish_sweep(folder: Path, *words: str, failed: Sequence[str] = ()) -> str:
    """What a sweep says that runs to its end. `failed`: the trials that fail."""
    before = state(folder)
    done = call(folder, *COMMAND, *words)
    assert [row["trial"] for row in rows(folder) if row["state"]] == [*failed], done.stdout
    assert state(folder) == before
    assert not (folder / COPIES).exists()
    runs = {path.parent.name for path in folder.glob("runs/*/*checkpoint.pt")}
    assert not [run for run in runs for row in rows(folder) if not row["state"] and f"-tried-{row['trial']}-" in run]
    return done.stdout


def rows(folder: Path) -> list[dict[str, str]]:
    return files.read_csv(folder / "metrics/sweep.csv")


@pytest.mark.slow("a sweep, 25 seconds of CPU; make test has the runner, the search and the page")
def test_the_best_by_validation_is_tested_and_no_other(tmp_path: Path) -> None:
    """The table is in the order of the validation accuracy; only the best trial's result has a test accuracy."""
    folder = project(tmp_path / "project", LEARNING, train__epochs=1)
    said = finish_sweep(folder)
    table = rows(folder)
    assert sorted(row["trial"] for row in table) == ["1", "2"]
    taken_over = {"1": "perennial repro", "2": f"perennial try tried-trial2 train.lr={table[0]['train.lr']}"}
    assert said.splitlines()[-1].split(maxsplit=3)[-1] == taken_over[table[0]["trial"]]
    assert sorted(table, key=lambda row: (-float(row["val_accuracy"]), float(row["val_loss"]))) == table
    assert next(row["train.lr"] for row in table if row["trial"] == "1") == "0.01"  # the present settings
    assert len([*(folder / store.RESULTS).glob(f"[!.]*/{store.HASHES}")]) == 3
    (best,) = (folder / store.RESULTS).glob("*/metrics/eval.json")
    assert figures.read(best.parent, TrainFigures).val_accuracy == float(table[0]["val_accuracy"])


@pytest.mark.nightly("two more sweeps; make test has the runner and the search, make test-ci a sweep")
def test_ctrl_c_twice_ends_what_runs_and_a_failed_trial_ends_nothing(tmp_path: Path) -> None:
    """What runs saves its state, and the next start goes on. test_folds.py kills a study, a DVC and a training."""
    content = {"search": "grid", "params": {"train.lr": [1000.0, 0.01]}}
    folder = project(tmp_path / "project", content)
    before = state(folder)
    running, copies = studies.start(folder, *SWEEP), folder / COPIES
    wait_for(lambda: running.poll() is not None or working_in(copies), "no trial runs")
    for _ in range(2):
        running.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert running.wait() == STOPPED
    assert not working_in(copies)
    assert state(folder) == before
    stdout = finish_sweep(folder, failed=["1"])
    assert "the loss of step " in stdout
    assert [(row["rank"], row["trial"], row["state"]) for row in rows(folder)] == [("1", "2", ""), ("", "1", "failed")]


@pytest.mark.nightly("repro with export and report, twice; make test has the sweep before it")
def test_a_trial_is_taken_over_without_a_training(tmp_path: Path) -> None:
    """By `perennial try` with its settings. The training comes from the run cache."""
    folder = project(tmp_path / "project", RANDOM)
    finish_sweep(folder, "--jobs", "2")
    lr = next(row["train.lr"] for row in rows(folder) if row["train.lr"] != "0.01")
    call(folder, sys.executable, "-m", "pipeline", "repro")
    commit(folder)
    done = call(folder, sys.executable, "-m", "pipeline", "try", "taken", f"train.lr={lr}")
    assert "taken from DVC's cache" in done.stdout
    assert "epoch 1/" not in done.stdout + done.stderr
