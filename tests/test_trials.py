"""The trial of a sweep: its identity, what is said of the best one, and the experiment that DVC sees."""

import re
from pathlib import Path

import pytest

from pipeline.base import files
from pipeline.config import params
from pipeline.studies import trials
from pipeline.studies.ranges import Sweep, Trial
from pipeline.studies.trials import TrialResult
from pipeline.versioning import programs
from tests.conftest import on_cpu, read_params
from tests.helpers.measured import train_figures
from tests.helpers.projects import call, commit
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
    return TrialResult(Trial(number, {"train.lr": number}), "", figures, Path())


def test_the_gain_is_over_the_present_settings() -> None:
    """Where they are the best, or have no result, no points are said."""
    present = result_of(1, 0.6)
    assert "+10.0 points" in trials.gain(result_of(2, 0.7), present)
    for best, other in ((present, present), (result_of(2, 0.7), result_of(1))):  # no gain, and no result
        assert "points" not in trials.gain(best, other)


@pytest.mark.parametrize("is_edited", [False, True])
def test_an_experiment_changes_nothing_of_the_user(
    is_edited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the files of the training and, of the others, those of the commit; not the figures of another model."""
    repository, folder = tmp_path / "repository", tmp_path / "result"
    for name in ("params.yaml", "metrics/eval.json", "code.py"):
        files.write_text(repository / name, "of the commit\n")
    call(repository, "git", "init", "--quiet")
    monkeypatch.chdir(repository)
    trials.publish("s-1", folder, params.Params())  # without a commit there is no experiment
    commit(repository)
    if is_edited:
        files.write_text(repository / "params.yaml", "mine\n")
        files.write_text(repository / "code.py", "mine\n")
        call(repository, "git", "add", "code.py")
    for name in ("params.yaml", "dvc.lock", "metrics/train.json"):
        files.write_text(folder / name, "of the trial\n")
    before = call(repository, "git", "status", "--porcelain").stdout
    trials.publish("s-1", folder, params.Params())
    assert call(repository, "git", "status", "--porcelain").stdout == before
    head = programs.output("git", "rev-parse", "HEAD").strip()
    refs = programs.output("git", "for-each-ref", "--format=%(refname) %(parent)", "refs/exps").split()
    assert refs == [f"refs/exps/{head[:2]}/{head[2:]}/s-1", head]
    names = programs.output("git", "ls-tree", "-r", "--name-only", refs[0]).split()
    assert names == ["code.py", "dvc.lock", "metrics/train.json", "params.yaml"]
    content = [programs.output("git", "show", f"{refs[0]}:{name}") for name in names]
    assert content == ["of the commit\n", *["of the trial\n"] * 3]
    assert sorted(path.name for path in folder.iterdir()) == ["dvc.lock", "metrics", "params.yaml"]
