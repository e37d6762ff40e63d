"""`perennial try`: an experiment in one line, after which the folder is as before."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.base.errors import Kind
from pipeline.config import params
from pipeline.studies import revisions
from pipeline.versioning import children, programs
from tests.conftest import set_params
from tests.helpers import in_process
from tests.helpers.projects import call, commit
from tests.helpers.refusals import refuses

LINE = ("warm", "train.lr=0.02", "train.crop_scale=[0.2, 1.0]", "evaluate.onnx=false")


def without_result(folder: Path) -> None:
    """A commit from before the first run."""
    (folder / "dvc.lock").unlink()
    commit(folder)


def without_figures(folder: Path) -> None:
    """A commit of a run that lacks the metrics, which Git keeps."""
    call(folder, "git", "rm", "-r", "--quiet", "--cached", "metrics")
    call(folder, "git", "-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "--quiet", "-m", "Without")


def with_new_file(folder: Path) -> None:
    """A file that the next commit has, with a name that Git shows in quotes."""
    (folder / "Gänse blümchen").touch()
    call(folder, "git", "add", "Gänse blümchen")


def nothing(_: Path) -> None:
    """The folder as it is."""


REFUSED: list[tuple[tuple[str, ...], Callable[[Path], object], str, Kind]] = [
    (("warm", "train.lr"), nothing, "SETTING", "value"),
    (("warm", "train.lr=0.1", "train.lr=0.2"), nothing, "SETTING", "value"),
    (("warm", "train.lr=[1"), nothing, "train.lr", "value"),
    (("warm", "train.lr=fast"), nothing, "train.lr", "value"),
    (("warm", "train.lrr=1"), nothing, "train.lrr", "unknown"),
    (("warm", "run.processes=2"), nothing, "run.processes", "pair"),
    (("warm", "train.lr=0.01"), nothing, "SETTING", "value"),
    (("workspace", "train.lr=1"), nothing, "NAME", "value"),
    *(((name, "train.lr=1"), nothing, "NAME", "value") for name in ("HEAD", "a b", "a..b", "a.", "a.lock")),
    (LINE, lambda folder: set_params(folder, train__momentum=0.5), "params.yaml", "differs"),
    (LINE, lambda folder: (folder / "metrics/eval.json").write_text("{}"), "dvc.lock", "differs"),
    (LINE, lambda folder: (folder / "data/corrections.csv").write_text("x"), "data/corrections.csv", "differs"),
    (LINE, with_new_file, "Gänse blümchen", "differs"),
    (LINE, without_result, "dvc.lock", "missing"),
    (LINE, without_figures, "dvc.lock", "missing"),
]


def test_a_refusal_comes_before_the_run_and_changes_nothing(finished_copy: Path) -> None:
    """A wrong name or setting, changes that would be lost, and a commit without a result."""
    head = call(finished_copy, "git", "rev-parse", "HEAD").stdout.strip()
    for line, arrange, key, kind in REFUSED:
        arrange(finished_copy)
        before = (finished_copy / "params.yaml").read_text()
        with refuses((key, kind)):
            importlib.import_module("pipeline.commands.try").begin(line[0], line[1:])
        assert (finished_copy / "params.yaml").read_text() == before
        call(finished_copy, "git", "reset", "--quiet", "--hard", head)


def test_a_folder_without_a_commit_is_told_how_to_make_one(tmp_path: Path) -> None:
    """Without a repository, and without a commit in it. What else Git refuses has no such remedy."""
    remedies = []
    for command in (["git", "init", "--quiet"], ["git", "commit", "--quiet", "--allow-empty", "-m", "First"], []):
        with refuses(("git ls-tree HEAD -- nothing ../..", "failed")) as error:
            programs.output("git", "ls-tree", "HEAD", "--", "nothing", "../..", cwd=tmp_path)
        remedies += [fault.remedy for fault in error.value.faults]
        if command:
            call(tmp_path, *command[:1], "-c", "user.name=a", "-c", "user.email=a@localhost", *command[1:])
    assert remedies[:2] == [programs.NO_REPOSITORY, programs.COMMIT]
    assert remedies[2] not in remedies[:2]


@pytest.mark.slow("two trainings under DVC; make test has the refusals")
def test_the_result_is_kept_and_compared_and_the_folder_is_as_before(
    finished_copy: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A start that has failed, or was killed at its end, goes on with the same line. Other files stay as they are."""
    lock = (finished_copy / "dvc.lock").read_bytes()
    (finished_copy / "notes.txt").write_text("mine")

    def run(words: list[str], env: Mapping[str, str]) -> int:
        """The commands that `try` starts, in this process; their stages are forked."""
        monkeypatch.setenv("DVC_EXP_NAME", env.get("DVC_EXP_NAME", ""))
        return in_process.run(capfd)[0] if words[-1] == "repro" else main(words[3:])

    def attempt() -> int:
        return main(["try", *LINE])

    in_process.fork_stages(monkeypatch, finished_copy)
    monkeypatch.setattr(children, "run", run)
    with monkeypatch.context() as patch:
        patch.setenv("MKL_CBWR", "COMPATIBLE")  # `train` refuses it
        assert attempt() != 0
    assert "0.02" in (finished_copy / "params.yaml").read_text()
    assert attempt() == 0
    capfd.readouterr()
    call(finished_copy, "dvc", "exp", "apply", "warm")  # so a kill leaves the folder, right after the result is kept
    assert attempt() == 0
    done = capfd.readouterr().out
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
