"""The trials of a sweep: what a grid, a random search and TPE give; each follows from its number and the file."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pipeline.base import files
from pipeline.base.errors import Kind
from pipeline.checks import machine
from pipeline.config import params
from pipeline.studies import ranges, search, trials
from pipeline.studies.ranges import Axis, Range, Sweep, Trial
from tests.conftest import PROJECT, on_cpu, read_params, write_params
from tests.helpers.refusals import refuses

LR, EPOCHS, SCALE = "train.lr", "train.epochs", "train.crop_scale"
AXES: dict[str, Axis] = {
    LR: Range.model_validate({"from": 0.001, "to": 1.0, "scale": "log"}),
    EPOCHS: Range.model_validate({"from": 1, "to": 40}),
    SCALE: ([0.08, 1.0], [0.5, 1.0]),
}
SWEEP = Sweep("s", "random", 40, 0, AXES)
LEARNING = replace(SWEEP, search="tpe")
PRESENT = {LR: 0.1, EPOCHS: 30, SCALE: [0.08, 1.0]}

ends = some.tuples(some.floats(1e-6, 1e6), some.sampled_from([1.0001, 1.1, 10, 1e6])).map(
    lambda pair: (pair[0], pair[0] * pair[1])  # of the narrowest, few numbers have three digits, or none
)


@given(ends, some.sampled_from(["linear", "log"]), some.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_a_draw_is_inside_its_range(pair: tuple[float, float], scale: str, seed: int) -> None:
    """It has three digits, unless it is an end."""
    axis = Range.model_validate({"from": pair[0], "to": pair[1], "scale": scale})
    value = search.random(Sweep("s", "random", 2, seed, {LR: axis}), {LR: 0.5}, 2)[1].values[LR]
    assert axis.start <= value <= axis.to
    assert value in (float(f"{value:.3g}"), *pair)


@given(some.integers(0, 2**32 - 1), some.integers(2, 20), some.integers(2, 20))
@settings(max_examples=20)
def test_trial_k_is_the_same_for_every_number_of_trials(seed: int, few: int, many: int) -> None:
    """All differ from one another, although draws repeat, and the first has the present settings."""
    sweep, present = Sweep("s", "random", 2, seed, {EPOCHS: Range.model_validate({"from": 1, "to": 60})}), {EPOCHS: 3}
    trials = search.random(sweep, present, few + many)
    assert trials[:few] == search.random(sweep, present, few)
    assert trials[0] == Trial(1, present)
    assert len({repr(trial.values) for trial in trials}) == few + many


def test_draws_are_the_same_everywhere_and_cover_the_range() -> None:
    """Two known draws; half of all are below the middle of a logarithmic range; another seed draws others.

    Of whole numbers both ends can be drawn, too, and all trials differ: one more than there are numbers is refused.
    """
    trials = search.random(SWEEP, PRESENT, 400)
    assert [trial.values for trial in trials[1:3]] == [
        {LR: 0.0136, EPOCHS: 8, SCALE: [0.08, 1.0]}, {LR: 0.064, EPOCHS: 22, SCALE: [0.08, 1.0]}
    ]  # fmt: skip
    assert 160 < sum(trial.values[LR] < math.sqrt(0.001) for trial in trials) < 240
    assert search.random(replace(SWEEP, seed=1), PRESENT, 3)[1:] != trials[1:3]
    whole = Sweep("s", "random", 4, 0, {EPOCHS: Range.model_validate({"from": 2, "to": 5})})
    drawn = sorted(trial.values[EPOCHS] for trial in search.random(whole, {EPOCHS: 3}, 4))
    assert (drawn, {*map(type, drawn)}) == ([2, 3, 4, 5], {int})
    with refuses(("trials", "value")):
        search.random(whole, {EPOCHS: 3}, 5)


def test_a_grid_has_every_combination_and_the_present_settings(tmp_path: Path) -> None:
    """In the order of the file, the last setting first. The present ones are a trial of their own only if they are no
    combination.
    """
    lists = {LR: [0.1, 0.2], SCALE: [[0.08, 1.0], [0.5, 1.0]], "train.flip": [0.5]}
    write_params(tmp_path / "my sweep.yaml", {"search": "grid", "params": lists})
    grid = ranges.read(tmp_path / "my sweep.yaml")
    assert (grid.name, grid.trials) == ("my sweep", 4)
    config = params.parse(on_cpu(read_params(), train__lr=0.2))
    inside = search.plan(grid, search.present_values(grid, config))
    assert [(trial.number, trial.values[LR], trial.values[SCALE][0]) for trial in inside] == [
        (1, 0.1, 0.08), (2, 0.1, 0.5), (3, 0.2, 0.08), (4, 0.2, 0.5)
    ]  # fmt: skip
    outside = search.plan(grid, search.present_values(grid, params.parse(on_cpu(read_params(), train__lr=0.3))))
    assert outside[0] == Trial(1, {LR: 0.3, SCALE: [0.08, 1.0], "train.flip": 0.5})
    assert [trial.values for trial in outside[1:]] == [trial.values for trial in inside]
    assert [trial.number for trial in outside] == [1, 2, 3, 4, 5]


def test_a_search_may_choose_every_value_and_both_ends_of_each_range() -> None:
    """What is checked before a search begins that chooses its trials by results."""
    corners = list(search.corners(LEARNING))
    assert len(corners) == len({repr(values) for values in corners}) == 8
    for key, expected in ((LR, (0.001, 1.0)), (EPOCHS, (1, 40)), (SCALE, AXES[SCALE])):
        assert all(any(values[key] == one for values in corners) for one in expected)


def accuracy(trial: Trial) -> float:
    """A result that is best near a learning rate of 0.1 with long trainings and small crops."""
    far = abs(math.log10(trial.values[LR]) + 1)
    return float(1 - 0.2 * far + 0.002 * trial.values[EPOCHS] + 0.05 * (trial.values[SCALE][0] < 0.1))


def search_with_results(count: int, first: dict[str, Any]) -> list[tuple[Trial, float]]:
    """A search of so many trials, with their results."""
    results: list[tuple[Trial, float]] = []
    for number in range(1, count + 1):
        trial = search.tpe(LEARNING, first, number, [(one.values, result) for one, result in results])
        results.append((trial, accuracy(trial)))
    return results


def test_tpe_learns_and_can_be_repeated() -> None:
    """The first trials are those of a random search, later ones are better, and all follow from the results alone."""
    first = PRESENT | {LR: 0.003}
    results = search_with_results(25, first)
    assert [trial for trial, _ in results[: search.FIRST]] == search.random(LEARNING, first, search.FIRST)
    assert results[:8] == search_with_results(8, first)
    random_results = [accuracy(trial) for trial in search.random(LEARNING, first, 25)]
    assert sum(result for _, result in results[-10:]) > sum(random_results[-10:])
    assert all(isinstance(trial.values[EPOCHS], int) for trial, _ in results)


@pytest.mark.parametrize("outside", [{LR: 5.0}, {EPOCHS: 41}, {SCALE: [0.3, 1.0]}])
def test_tpe_learns_from_values_inside_alone(outside: dict[str, Any]) -> None:
    """Present settings outside of what the file allows are tried, and change no later choice."""
    results = [(trial.values, accuracy(trial)) for trial in search.random(LEARNING, PRESENT, search.FIRST)][1:]
    trial = search.tpe(LEARNING, PRESENT, 6, results)
    assert search.tpe(LEARNING, PRESENT, 6, [(PRESENT | outside, 1.0), *results]) == trial
    assert search.tpe(replace(LEARNING, seed=1), PRESENT, 6, results) != trial
    assert search.tpe(LEARNING, PRESENT, 6, [(PRESENT | outside, 1.0)]) == search.random(LEARNING, PRESENT, 6)[-1]


def test_a_trial_that_cannot_run_is_refused_before_any_runs() -> None:
    """With its values."""
    config, here = params.parse(on_cpu(read_params())), machine.read()
    trials.check(config, [{LR: 0.1, "train.crop_scale": [0.5, 1.0]}], here)
    with refuses((LR, "value")):
        trials.check(config, [{LR: 0.1}, {LR: -1}], here)
    with refuses(("train.precision", "pair")) as error:
        trials.check(config, [{LR: 0.5, "train.precision": "tf32"}], here)
    assert "train.lr=0.5 train.precision=tf32" in error.value.faults[0].reason
    several: list[tuple[object, Kind]] = [("train.precision", "pair")] * 8
    with refuses(*several):
        trials.check(config, [{LR: number, "train.precision": "tf32"} for number in range(1, 9)], here)


def test_the_example_can_run_with_the_params_of_a_cpu() -> None:
    """Every trial of docs/sweep.yaml is accepted."""
    example = ranges.read(PROJECT / "docs/sweep.yaml")
    config = params.parse(on_cpu(read_params()))
    first = search.present_values(example, config)
    trials.check(config, [trial.values for trial in search.random(example, first, example.trials)], machine.read())


def test_the_users_own_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of params.yaml: they are tried. A missing file is refused."""
    monkeypatch.chdir(tmp_path)
    config = params.parse(on_cpu(read_params(), train__weights="data/pretrained/mine.pth"))
    sweep = Sweep("s", "grid", 2, 0, {"train.weights": ("none", "data/pretrained/one.pth")})
    own = [Path("data/pretrained") / name for name in ("mine.pth", "one.pth")]
    files.write_text(own[0], "")
    with refuses(("train.weights", "missing")):
        trials.weights(config, sweep)
    files.write_text(own[1], "")
    assert trials.weights(config, sweep) == list(map(str, own))


def test_a_name_is_one_that_git_takes() -> None:
    """Of the name of the file of ranges letters and digits are left."""
    assert re.fullmatch(r"my-sweep-+2-1", trials.name("my sweep: 学习 (2)", "1"))
    assert trials.name("学习", "1") == "sweep-1"
