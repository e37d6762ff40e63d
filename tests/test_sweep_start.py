"""What a sweep refuses before it runs anything, and which experiments it asks for. No DVC runs here."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline import sweep
from pipeline.base import files, locks, programs
from pipeline.base.errors import UserError
from pipeline.config import machine, params
from pipeline.studies import experiments, following, queueing
from pipeline.studies.following import Order
from pipeline.studies.ranges import Sweep, Trial
from pipeline.studies.trials import Done
from tests.conftest import on_cpu, read_params, write_params
from tests.helpers.measured import train_figures
from tests.helpers.projects import link_code
from tests.helpers.refusals import refuses

TRIALS = [Trial(number, {"train.lr": lr}) for number, lr in ((1, 0.1), (2, 0.2), (3, 0.3))]
GRID = Sweep("s", "grid", 3, 0, {"train.lr": (0.1, 0.2, 0.3)})
RESULTS = {1: (train_figures(0.5, 1.0, 1),), 2: (train_figures(0.75, 1.0, 1),), 3: ()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder, as far as a sweep looks at it before DVC runs."""
    (tmp_path / ".dvc").mkdir()
    link_code(tmp_path)
    write_params(tmp_path / "params.yaml", on_cpu(read_params()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def swept(results: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> list[Order]:
    """The orders that a sweep gives when its trials had these results."""

    @contextmanager
    def no_queue(_: str) -> Iterator[None]:
        yield

    config = params.parse(on_cpu(read_params()))
    study = sweep.Study(GRID, config, "0" * 40, {}, {}, machine.read(), 1, threading.Event())
    ordered: list[Order] = []
    monkeypatch.setattr(queueing, "repair", str)
    monkeypatch.setattr(experiments, "finished", lambda _: {})
    monkeypatch.setattr(experiments, "opened", no_queue)
    monkeypatch.setattr(sweep, "prepared", lambda *_: study)
    monkeypatch.setattr(sweep, "run", lambda *_: [Done(one, f"s-{one.number}", results[one.number]) for one in TRIALS])
    monkeypatch.setattr(following, "run", lambda _, orders, *others: ordered.extend(orders))
    monkeypatch.setattr(sweep, "conclude", lambda *_: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert sweep.sweep(Path("s.yaml"), 1) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert "evaluate" not in {target for trial in TRIALS for target in study.order(trial).targets}
    return ordered


@pytest.mark.usefixtures("folder")
def test_only_the_best_by_validation_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once. No trial evaluates on the test images; the table has all of them, the best first."""
    (test,) = swept(RESULTS, monkeypatch)
    assert (test.values, test.targets[-1]) == ({"train.lr": 0.2}, "evaluate")
    assert [row["trial"] for row in files.read_csv(Path("metrics/sweep.csv"))] == ["2", "1", "3"]


@pytest.mark.usefixtures("folder")
def test_without_a_result_nothing_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the table and how to see the reason."""
    with pytest.raises(UserError, match=r"^no trial has a result \(metrics/sweep.csv\); why: dvc queue logs s-1$"):
        swept(dict.fromkeys(RESULTS, ()), monkeypatch)


def test_a_search_that_learns_has_one_trial_at_a_time(folder: Path) -> None:
    """Each needs the results before it."""
    tried = {"search": "tpe", "trials": 2, "params": {"train.lr": {"from": 0.01, "to": 0.1}}}
    write_params(folder / "s.yaml", tried)
    with pytest.raises(UserError, match=r"^--jobs 2 × search: tpe, .*; allowed: 1$"):
        sweep.prepared(Path("s.yaml"), 2)


def test_both_ends_of_a_range_must_be_allowed(folder: Path) -> None:
    """A search that learns may choose them; they are checked before it begins."""
    tried = {"search": "tpe", "trials": 2, "params": {"train.lr": [0.1], "train.epochs": {"from": 1, "to": 10**12}}}
    write_params(folder / "s.yaml", tried)
    with refuses(("train.epochs", "value")):
        sweep.prepared(Path("s.yaml"), 1)


@pytest.mark.usefixtures("folder")
def test_two_sweeps_of_a_folder_are_refused() -> None:
    """They would take each other's queue. After the first one has ended, the next may begin."""
    folder = programs.TEMPORARY / "sweep"
    with (
        locks.held(folder, "runs a sweep"),
        pytest.raises(UserError, match=rf"^{folder}: process {os.getpid()} runs a sweep; wait for it"),
    ):
        sweep.sweep(Path("s.yaml"), 1)
    with locks.held(folder, "runs a sweep"):
        pass


def test_a_sweep_needs_the_folder_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^\.dvc: not found; run from the project's folder"):
        sweep.sweep(Path("s.yaml"), 1)
