"""The folder of a run: a name that a person reads, a fingerprint that is compared as a whole."""

import os
import re
from pathlib import Path

import pytest

from pipeline.base import files, locks
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.running import launch, runs
from pipeline.running.runs import find_run
from tests.conftest import change, on_cpu, read_params
from tests.helpers.trainings import small_world

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


def test_what_another_process_holds_is_left_alone(config: Params, capsys: pytest.CaptureFixture[str]) -> None:
    """The holder says what it does."""
    for name in ("held", "free"):
        files.write_text(Path("runs", name, runs.FINGERPRINT), f"{DIGEST}\n")
    Path("runs/photos").mkdir()  # no run: somebody else's
    with locks.hold(Path("runs/held"), "does what it says"):
        runs.clean(config)
    assert sorted(folder.name for folder in Path("runs").iterdir()) == ["held", "photos"]
    assert f"runs/held: process {os.getpid()} does what it says" in capsys.readouterr().err


def test_a_launcher_removes_the_notes_of_those_that_were_killed(config: Params) -> None:
    """Not those of a launcher that lives, or that has not taken its lock yet. Its own notes are gone at its end."""
    for name in ("launch-killed", "launch-lives"):
        with locks.hold(Path("runs", name), "waits"):
            pass
    Path("runs/launch-begins").mkdir()
    with locks.hold(Path("runs/launch-lives"), "waits"):
        launch.with_restarts(("this", "--help"), config.run, Path("runs"))
    assert sorted(folder.name for folder in Path("runs").iterdir()) == ["launch-begins", "launch-lives"]


def test_clean_runs_removes_what_nothing_would_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stale and finished folders, and it says how much that freed. What a start with these params resumes stays."""
    monkeypatch.chdir(small_world(tmp_path / "world"))
    config = params.load()
    run = runs.current(config)
    run.begin()
    run.checkpoint.touch()
    files.write_text(Path("runs/stale", runs.FINGERPRINT), "0" * 64)
    Path("runs/stale", runs.CHECKPOINT).write_bytes(bytes(2_500_000))
    runs.clean(config)
    assert [*Path("runs").iterdir()] == [run.folder]
    assert re.findall(r"[\d.]+", capsys.readouterr().out) == ["1", "2.5"]  # folders, MB
    run.checkpoint.unlink()  # it has finished
    runs.clean(config)
    assert not [*Path("runs").iterdir()]
