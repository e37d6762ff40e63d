"""The trial of a sweep: its identity, its name, and what is said of the best one."""

import re
from pathlib import Path

import pytest

from pipeline.config import params
from pipeline.studies import trials
from pipeline.studies.ranges import Sweep, Trial
from pipeline.studies.trials import TrialResult
from tests.conftest import on_cpu, read_params
from tests.helpers.measured import train_figures
from tests.helpers.refusals import refuses


def test_the_users_own_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of params.yaml: they are tried. A missing file is refused."""
    monkeypatch.chdir(tmp_path)
    config = params.parse(on_cpu(read_params(), train__weights="mine.safetensors"))
    sweep = Sweep("s", "grid", 2, 0, {"train.weights": ("none", "one.safetensors")})
    Path("mine.safetensors").touch()
    with refuses(("train.weights", "missing")):
        trials.weights(config, sweep)
    Path("one.safetensors").touch()
    assert trials.weights(config, sweep) == ["mine.safetensors", "one.safetensors"]


def test_a_name_is_one_that_git_takes() -> None:
    """Of the name of the file of ranges letters and digits are left."""
    assert re.fullmatch(r"my-sweep-+2-1", trials.name("my sweep: 学习 (2)", "1"))
    assert trials.name("学习", "1") == "sweep-1"


def result_of(number: int, *accuracies: float) -> TrialResult:
    figures = tuple(train_figures(accuracy, 1.0, 1) for accuracy in accuracies)
    return TrialResult(Trial(number, {"train.lr": number}), figures, Path())


def test_the_gain_is_over_the_present_settings() -> None:
    """Where they are the best, or have no result, no points are said."""
    present = result_of(1, 0.6)
    assert "+10.0 points" in trials.gain(result_of(2, 0.7), present)
    for best, other in ((present, present), (result_of(2, 0.7), result_of(1))):  # no gain, and no result
        assert "points" not in trials.gain(best, other)
