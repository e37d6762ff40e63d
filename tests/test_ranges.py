"""Files of ranges: the trials that they stand for, and what is refused."""

import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pipeline.base.errors import Kind, UserError
from pipeline.config import machine, params
from pipeline.studies import experiments, ranges, tpe, trials
from pipeline.studies.ranges import Range, Sweep, Trial
from tests.conftest import PROJECT, on_cpu, read_params, write_params
from tests.helpers.refusals import refuses

LR, MIXUP = "train.lr", "train.mixup"
FILE: dict[str, Any] = {"search": "random", "trials": 4, "params": {LR: {"from": 0.01, "to": 0.1}, MIXUP: [0.0, 0.2]}}
SIZES: dict[str, ranges.Axis] = {
    LR: Range.model_validate({"from": 0.001, "to": 1.0, "scale": "log"}),
    "train.epochs": Range.model_validate({"from": 1, "to": 40}),
    "train.crop_scale": ([0.08, 1.0], [0.5, 1.0]),
}
KNOWN = [{LR: 0.0337, MIXUP: 0.2}, {LR: 0.0154, MIXUP: 0.2}]
LEARNING = Sweep("s", "tpe", 30, 0, SIZES)


def of(**changes: Any) -> dict[str, Any]:
    """The content of a file with these changes; None takes a line out."""
    return {key: value for key, value in (FILE | changes).items() if value is not None}


def read(folder: Path, content: Any) -> Sweep:
    """The sweep of a file with this content."""
    write_params(folder / "my sweep.yaml", content)
    return ranges.read(folder / "my sweep.yaml")


numbers = some.integers(-1000, 1000) | some.floats(-1e6, 1e6)
ends = some.tuples(numbers, numbers).filter(lambda pair: pair[0] < pair[1])
positive = some.tuples(some.floats(1e-6, 1e6), some.floats(1e-6, 1e6)).filter(lambda pair: pair[0] < pair[1])
shares = some.floats(0, 1, exclude_max=True)


@given(ends, shares)
def test_a_value_is_inside_its_range(pair: tuple[float, float], share: float) -> None:
    """It is a whole number if both ends are."""
    axis = Range.model_validate({"from": pair[0], "to": pair[1]})
    assert axis.start <= axis.at(share) <= axis.to
    assert isinstance(axis.at(share), int) == all(isinstance(end, int) for end in pair)


@given(positive, shares)
def test_a_logarithmic_range_has_its_middle_between_the_exponents(pair: tuple[float, float], share: float) -> None:
    axis = Range.model_validate({"from": pair[0], "to": pair[1], "scale": "log"})
    assert axis.start <= axis.at(share) <= axis.to
    assert axis.at(0.5) == pytest.approx(math.sqrt(pair[0] * pair[1]), rel=0.005)


def sweep_of(seed: int, trials: int, *keys: str) -> Sweep:
    axes: dict[str, ranges.Axis] = {
        LR: Range.model_validate({"from": 0.01, "to": 0.1, "scale": "log"}),
        MIXUP: (0.0, 0.2),
    }
    return Sweep("s", "random", trials, seed, {key: axes[key] for key in keys or axes})


@given(some.integers(0, 2**32 - 1), some.integers(1, 20), some.integers(1, 20))
def test_more_trials_keep_the_first_ones(seed: int, few: int, many: int) -> None:
    """They are different from one another, and are drawn to three digits."""
    found = ranges.random(sweep_of(seed, 40), few + many)
    assert found[:few] == ranges.random(sweep_of(seed, 40), few)
    assert len({repr(trial.values) for trial in found}) == few + many
    assert all(float(f"{trial.values[LR]:.3g}") == trial.values[LR] for trial in found)


def test_draws_are_the_same_everywhere_and_cover_the_range() -> None:
    """Two known values; another setting in the file does not move them; half of the draws are below the middle."""
    found = ranges.random(sweep_of(0, 400), 400)
    assert [trial.values[LR] for trial in found[:3]] == [
        trial.values[LR] for trial in ranges.random(sweep_of(0, 3, LR), 3)
    ]
    assert [trial.values for trial in found[:2]] == KNOWN
    below = sum(trial.values[LR] < math.sqrt(0.001) for trial in found)
    assert 160 < below < 240


def test_a_grid_has_every_combination(tmp_path: Path) -> None:
    """In the order of the file, the last setting first; the file may say nothing of trials."""
    lists = {LR: [0.1, 0.2], "train.crop_scale": [[0.08, 1.0], [0.5, 1.0]], "train.flip": [0.5]}
    found = read(tmp_path, {"search": "grid", "params": lists})
    assert (found.name, found.trials) == ("my sweep", 4)
    assert [trial.values[LR] for trial in ranges.grid(found)] == [0.1, 0.1, 0.2, 0.2]
    assert [trial.values["train.crop_scale"] for trial in ranges.grid(found)][:2] == lists["train.crop_scale"]
    assert [trial.number for trial in ranges.grid(found)] == [1, 2, 3, 4]


def test_a_search_may_choose_every_value_and_both_ends_of_each_range() -> None:
    """What is checked before a search begins that chooses its trials by results."""
    found = list(ranges.corners(LEARNING))
    assert len(found) == len({repr(values) for values in found}) == 8
    ends: dict[str, list[Any]] = {
        LR: [0.001, 1.0],
        "train.epochs": [1, 40],
        "train.crop_scale": [[0.08, 1.0], [0.5, 1.0]],
    }
    for key, expected in ends.items():
        assert all(any(values[key] == one for values in found) for one in expected)


def test_every_whole_number_of_a_range_can_be_drawn(tmp_path: Path) -> None:
    """Also both ends: so many trials as there are numbers are all different, and one more is refused."""
    content = {"search": "random", "trials": 4, "params": {"train.epochs": {"from": 2, "to": 5}}}
    drawn = ranges.random(read(tmp_path, content), 4)
    assert sorted(trial.values["train.epochs"] for trial in drawn) == [2, 3, 4, 5]
    with refuses((f"{tmp_path}/my sweep.yaml: trials", "value")):
        read(tmp_path, content | {"trials": 5})


REFUSED: dict[str, tuple[Any, str, Kind]] = {
    "search": (of(search="best"), "search", "value"),
    "no search": (of(search=None), "search", "missing"),
    "key": (of(jobs=2), "jobs", "unknown"),
    "no trials": (of(trials=None), "trials", "missing"),
    "too many": (of(params={MIXUP: [0.0, 0.2]}), "trials", "value"),
    "grid": (of(search="grid", trials=None), LR, "pair"),
    "grid of so many": (of(search="grid", params={LR: [0.1]}), "trials", "pair"),
    "large grid": (
        {"search": "grid", "params": {LR: [0.01 * n for n in range(1, 40)], MIXUP: [0.01 * n for n in range(40)]}},
        "params",
        "value",
    ),
    "no params": (of(params={}), "params", "value"),
    "name": (of(params={"train.mixupp": [0.1]}), "params", "unknown"),
    "section": (of(params={"lr": [0.1]}), "params", "unknown"),
    **{key: (of(params={key: [0, 1]}), "params", "value") for key in ("data.source", "split.seed", "train.seed")},
    "order": (of(params={LR: {"from": 0.2, "to": 0.1}}), LR, "value"),
    "log": (of(params={LR: {"from": 0, "to": 0.1, "scale": "log"}}), LR, "pair"),
    "scale": (of(params={LR: {"from": 0.1, "to": 0.2, "scale": "ln"}}), f"{LR}.scale", "value"),
    "range": (of(params={LR: {"from": 0.1, "to": 1, "step": 1}}), f"{LR}.step", "unknown"),
    "value": (of(params={LR: 0.1}), LR, "value"),
    "twice": (of(params={LR: [0.1, 0.1]}), LR, "value"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_with_a_fault_is_refused(tmp_path: Path, case: str) -> None:
    """The fault names the file and the key in it."""
    content, key, kind = REFUSED[case]
    with refuses((f"{tmp_path}/my sweep.yaml: {key}", kind)):
        read(tmp_path, content)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    """So is a missing one."""
    with refuses((tmp_path / "my sweep.yaml", "damaged")):
        read(tmp_path, [1])
    with refuses((tmp_path / "nowhere.yaml", "missing")):
        ranges.read(tmp_path / "nowhere.yaml")


def test_a_trial_that_cannot_run_is_refused_before_any_runs() -> None:
    """With its values. Of many, the first five are named."""
    config, here = params.parse(on_cpu(read_params())), machine.read()
    trials.check(config, [{LR: 0.1, "train.crop_scale": [0.5, 1.0]}], here)
    with refuses((LR, "value")):
        trials.check(config, [{LR: 0.1}, {LR: -1}], here)
    with refuses(("train.precision", "pair")) as error:
        trials.check(config, [{LR: 0.5, "train.precision": "tf32"}], here)
    assert "train.lr=0.5 train.precision=tf32" in error.value.faults[0].reason
    several: list[tuple[object, Kind]] = [("train.precision", "pair")] * trials.MOST_SHOWN
    with refuses(*several):
        trials.check(config, [{LR: number, "train.precision": "tf32"} for number in range(1, 9)], here)


@pytest.mark.parametrize("section", ["without the key", "empty", "missing"])
def test_a_setting_that_an_old_params_file_lacks_is_refused(section: str) -> None:
    """DVC can only replace a value. The message has the line, with its default value."""
    raw = read_params()
    trials.check_written(raw, ["train.patience"])
    if section == "without the key":
        del raw["train"]["patience"]
    elif section == "empty":
        raw["train"] = None
    else:
        del raw["train"]
    with pytest.raises(UserError, match=r"^params.yaml lacks train.patience; .*'patience: 0' in train$"):
        trials.check_written(raw, ["train.patience"])


def test_the_example_can_run_with_the_params_of_a_cpu() -> None:
    """Every trial of docs/sweep.yaml is accepted."""
    example = ranges.read(PROJECT / "docs/sweep.yaml")
    config = params.parse(on_cpu(read_params()))
    trials.check(config, [trial.values for trial in ranges.random(example, example.trials)], machine.read())


def accuracy(trial: Trial) -> float:
    """A result that is best near a learning rate of 0.1 with long trainings and small crops."""
    far = abs(math.log10(trial.values[LR]) + 1)
    return float(
        1 - 0.2 * far + 0.002 * trial.values["train.epochs"] + 0.05 * (trial.values["train.crop_scale"][0] < 0.1)
    )


def learned(count: int) -> list[tuple[Trial, float]]:
    """A search of so many trials."""
    found: list[tuple[Trial, float]] = []
    for number in range(1, count + 1):
        trial = tpe.proposed(LEARNING, number, [(one.values, result) for one, result in found])
        found.append((trial, accuracy(trial)))
    return found


def test_tpe_learns_and_can_be_repeated() -> None:
    """The first trials are those of a random search. Later ones are better. They follow from the results alone: asked
    again, in any number, a search has the same trials.
    """
    found = learned(25)
    assert [trial for trial, _ in found[: tpe.FIRST]] == ranges.random(LEARNING, tpe.FIRST)
    assert found[:8] == learned(8)
    results = [result for _, result in found]
    drawn = [accuracy(trial) for trial in ranges.random(LEARNING, 25)]
    assert sum(results[-10:]) > sum(drawn[-10:])
    assert all(isinstance(trial.values["train.epochs"], int) for trial, _ in found)
    assert all(float(f"{trial.values[LR]:.3g}") == trial.values[LR] for trial, _ in found)


def test_tpe_depends_on_the_seed_of_the_file_and_needs_a_result() -> None:
    """As long as all trials have failed, they are drawn."""
    seen = [(trial.values, accuracy(trial)) for trial in ranges.random(LEARNING, tpe.FIRST)]
    asked = [tpe.proposed(replace(LEARNING, seed=seed), tpe.FIRST + 1, seen) for seed in (0, 1, 0)]
    assert asked[0] == asked[2] != asked[1]
    assert tpe.proposed(LEARNING, tpe.FIRST + 1, []) == ranges.random(LEARNING, tpe.FIRST + 1)[-1]


def test_the_reason_of_a_failure_is_the_sentence_before_the_launchers() -> None:
    """Of what a stage prints, the last sentence of its own is the reason."""
    printed = (
        "train: starting\ntrain: the loss of step 4 is not finite\ntrain: process 0 of 1 ended with exit status 1\n"
    )
    assert experiments.FAULT.findall(printed)[-1] == "the loss of step 4 is not finite"


def test_tpe_without_optuna_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"^search: tpe needs Optuna, which is not installed; pip install optuna==\d"):
        tpe.check()


def test_the_message_names_the_locked_version() -> None:
    """The version of Optuna that the message installs is the one of requirements/lock.txt."""
    locked = re.search(r"^optuna==(\S+)", (PROJECT / "requirements/lock.txt").read_text(), re.MULTILINE)
    assert locked
    assert f"optuna=={locked[1]}," in (PROJECT / "pipeline/studies/tpe.py").read_text()
