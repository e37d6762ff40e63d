"""`perennial try`: an experiment in one line, after which the folder is as before."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.base.errors import Kind
from pipeline.config import params
from pipeline.studies import revisions
from tests.conftest import set_params
from tests.helpers.projects import call, commit
from tests.helpers.refusals import refuses

LINE = ("warm", "train.lr=0.02", "train.crop_scale=[0.2, 1.0]")


def without_result(folder: Path) -> None:
    """A commit from before the first run."""
    (folder / "dvc.lock").unlink()
    commit(folder)


def without_figures(folder: Path) -> None:
    """A commit of a run that lacks the metrics, which Git keeps."""
    call(folder, "git", "rm", "-r", "--quiet", "--cached", "metrics")
    call(folder, "git", "-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "--quiet", "-m", "Without")


def nothing(_: Path) -> None:
    """The folder as it is."""


REFUSED: list[tuple[tuple[str, ...], Callable[[Path], object], str, Kind]] = [
    (("warm", "train.lr"), nothing, "SETTING", "value"),
    (("warm", "train.lr=[1"), nothing, "train.lr", "value"),
    (("warm", "train.lr=fast"), nothing, "train.lr", "value"),
    (("warm", "train.lrr=1"), nothing, "train.lrr", "unknown"),
    (("warm", "run.processes=2"), nothing, "run.processes", "pair"),
    (("warm", "train.lr=0.01"), nothing, "SETTING", "value"),
    (("workspace", "train.lr=1"), nothing, "NAME", "value"),
    (("a b", "train.lr=1"), nothing, "NAME", "value"),
    (LINE, lambda folder: set_params(folder, train__momentum=0.5), "params.yaml", "differs"),
    (LINE, lambda folder: (folder / "metrics/eval.json").write_text("{}"), "dvc.lock", "differs"),
    (LINE, lambda folder: (folder / "data/corrections.csv").write_text("x"), "data/corrections.csv", "differs"),
    (LINE, without_result, "dvc.lock", "missing"),
    (LINE, without_figures, "dvc.lock", "missing"),
]


@pytest.mark.parametrize(("line", "arrange", "key", "kind"), REFUSED)
def test_a_refusal_comes_before_the_run_and_changes_nothing(
    finished_copy: Path, line: tuple[str, ...], arrange: Callable[[Path], object], key: str, kind: Kind
) -> None:
    """A wrong name or setting, changes that would be lost, and a commit without a result."""
    arrange(finished_copy)
    before = (finished_copy / "params.yaml").read_text()
    with refuses((key, kind)):
        importlib.import_module("pipeline.commands.try").begin(line[0], line[1:])
    assert (finished_copy / "params.yaml").read_text() == before


@pytest.mark.slow("two trainings under DVC; make test has the refusals")
def test_the_result_is_kept_and_compared_and_the_folder_is_as_before(finished_copy: Path) -> None:
    """A start that has failed goes on with the same line. Files beside the run stay as they are."""
    lock = (finished_copy / "dvc.lock").read_bytes()
    (finished_copy / "notes.txt").write_text("mine")
    command = [sys.executable, "-m", "pipeline", "try", *LINE]
    assert (
        call(finished_copy, "env", "MKL_CBWR=COMPATIBLE", *command, check=False).returncode != 0
    )  # `train` refuses it
    assert "0.02" in (finished_copy / "params.yaml").read_text()
    done = call(finished_copy, *command).stdout
    table = done[done.index("\nexperiment ") :]
    assert [line.split()[0] for line in table.splitlines() if line.startswith(("HEAD ", "warm "))] == ["HEAD", "warm"]
    assert "train.lr=0.02" in table
    assert "McNemar" in table
    assert call(finished_copy, "git", "status", "--porcelain").stdout == "?? notes.txt\n"
    assert (finished_copy / "dvc.lock").read_bytes() == lock
    assert call(finished_copy, "dvc", "status", "--json").stdout.strip() == "{}"
    paths = params.load().paths
    kept = revisions.read("warm", revisions.experiments(), paths)
    assert (kept.state, kept.params["train.lr"], kept.params["train.crop_scale"]) == ("", 0.02, [0.2, 1.0])
    assert kept.model != revisions.read("HEAD", {}, paths).model
