"""The folder of a run: a name that a person reads, a fingerprint that is compared as a whole."""

from pathlib import Path

import pytest

from pipeline.base import locks
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.running import launch
from pipeline.running.runs import find_run
from tests.conftest import change, on_cpu, read_params

DIGEST = "0123456789abcdef" * 4


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """Params of a run on the CPU, in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_EXP_NAME", raising=False)
    return params.parse(change(on_cpu(read_params()), train__model="resnet18"))


def test_the_name_has_model_precision_parallel_and_experiment(config: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """And eight digits; a slash of timm's names becomes a hyphen."""
    assert find_run(config, DIGEST).folder == Path("runs/resnet18-fp32-single-01234567")
    monkeypatch.setenv("DVC_EXP_NAME", "calm-wren")
    timm = config.train.model_copy(update={"model": "timm/resnet10t"})
    config = config.model_copy(update={"train": timm})
    assert find_run(config, DIGEST).folder == Path("runs/timm-resnet10t-fp32-single-calm-wren-01234567")


def test_a_start_in_another_experiment_finds_the_same_run(config: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint decides, so an interrupted run goes on under the name that it began with."""
    monkeypatch.setenv("DVC_EXP_NAME", "first")
    first = find_run(config, DIGEST)
    first.begin()
    monkeypatch.setenv("DVC_EXP_NAME", "second")
    assert find_run(config, DIGEST) == first


def test_a_launcher_removes_the_notes_of_those_that_were_killed(config: Params) -> None:
    """Not those of a launcher that lives, or that has not taken its lock yet. Its own notes are gone at its end."""
    for name in ("launch-killed", "launch-lives"):
        with locks.hold(Path("runs", name), "waits"):
            pass
    Path("runs/launch-begins").mkdir()
    with locks.hold(Path("runs/launch-lives"), "waits"):
        launch.with_restarts(("this", "--help"), config.run, Path("runs"))
    assert sorted(folder.name for folder in Path("runs").iterdir()) == ["launch-begins", "launch-lives"]
