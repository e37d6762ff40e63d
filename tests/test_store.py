"""The store of results: what decides a result, which results count, and what stays of a training."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.config import params
from pipeline.studies import runner, store, workcopy
from pipeline.studies.runner import Job
from pipeline.studies.store import Study, Training
from pipeline.studies.workcopy import WorkCopy
from tests.conftest import on_cpu, read_params, write_params
from tests.helpers.projects import create_project, link_code
from tests.helpers.refusals import refuses

ONE, OTHER = (Training("one", {"train.lr": lr}, "the one") for lr in (0.1, 0.2))
EVAL = "metrics/eval.json"


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study of trainings on a split, in a folder with the code of this project."""
    monkeypatch.chdir(tmp_path)
    source = workcopy.FOLDER / "mine" / store.SOURCE
    source.mkdir(parents=True)
    link_code(source)
    write_params(source / params.FILE, on_cpu(read_params()))
    (source / "data").mkdir()
    (source / "data/split.csv").touch()
    lock = {"split": {"cmd": "", "outs": [{"path": "data/split.csv", "md5": "a" * 32}]}}
    write_params(source / "dvc.lock", {"schema": "2.0", "stages": lock})
    copy = WorkCopy(source, params.load(source / params.FILE))
    return Study("mine", copy, source.with_name(store.RUNS), [], ("train",), (EVAL,))


def test_what_decides_a_result_names_it(study: Study) -> None:
    """Params, data, code, stages, and what else a study names. What is kept, and how fast it runs, changes nothing."""
    digest = study.digest(ONE)
    assert digest == replace(study, outputs=()).digest(Training("two", {**ONE.values, "run.workers": 5}, ""))
    others = [study.digest(OTHER), replace(study, stages=("train", "evaluate")).digest(ONE)]
    others += [replace(study, others={"hardware": {"cpu": "x"}}).digest(ONE)]
    lock = study.source.folder / "dvc.lock"
    lock.write_text(lock.read_text().replace("a" * 32, "b" * 32))
    others += [replace(study).digest(ONE)]
    code = study.source.folder / "pipeline"
    copied = shutil.copytree(code.resolve(), study.source.folder / "copied", symlinks=True)
    code.unlink()
    copied.rename(code)
    (code / "learning/loss.py").write_text("LOSS = 1\n")
    others += [replace(study).digest(ONE)]
    assert len({digest, *others}) == 6


@pytest.fixture
def work(study: Study, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of the trainings that ran. Each writes an evaluation; the one with the title "bad" fails."""
    done: list[str] = []

    def run_all(jobs: list[Job], *_: object) -> Any:
        for job in jobs:
            job.prepare()
            done.append(job.name)
            (job.folder / runner.LOG).write_text("what it said")
            run = job.folder / "runs" / f"resnet-{job.environ['DVC_EXP_NAME']}-12345678"
            files.write_json(run / "provenance.json", {})
            (run / "checkpoint.pt").touch()
            files.write_json(job.folder / EVAL, {"title": job.name})
            md5 = files.md5(job.folder / EVAL)
            outs = [{"path": EVAL, "md5": md5}, {"path": "models/model.safetensors", "md5": "c" * 32}]
            write_params(job.folder / "dvc.lock", {"schema": "2.0", "stages": {"train": {"cmd": "", "outs": outs}}})
            yield job, [Fault(job.name, "exit status 1", "failed", remedy="its log")] * (job.name == "bad")

    monkeypatch.setattr(runner, "run_all", run_all)
    monkeypatch.setattr(workcopy, "repair_cache", lambda _: False)
    return done


def test_a_result_is_kept_and_its_training_runs_once(study: Study, work: list[str]) -> None:
    """It has its params, dvc.lock, outputs and provenance. The work copy and the checkpoint go, the run stays."""
    (result,) = store.results(study, [ONE])
    assert result.config.train.lr == 0.1
    kept = {name: files.md5(result.folder / name) for name in (EVAL, *store.RECORD)}
    assert result.hashes == kept | {"models/model.safetensors": "c" * 32}
    names = {path.name for path in result.folder.rglob("*") if path.is_file()}
    assert names == {"params.yaml", "dvc.lock", "eval.json", "provenance.json", store.HASHES}
    assert sorted(path.name for path in study.source.folder.parent.iterdir()) == [store.RUNS, store.SOURCE]
    assert not [*study.runs.glob("*/*checkpoint.pt")]
    (checkpoint,) = (path / "checkpoint.pt" for path in study.runs.iterdir())
    checkpoint.touch()  # of a study that was killed after it had kept the result
    assert [one.config.train.lr for one in store.results(study, [OTHER, ONE])] == [0.2, 0.1]
    assert not checkpoint.exists()
    assert work == ["the one", "the one"]


@pytest.mark.parametrize("name", [EVAL, store.HASHES, *store.RECORD])
@pytest.mark.parametrize("content", [b"", None])
def test_a_damaged_result_is_none(study: Study, work: list[str], name: str, content: bytes | None) -> None:
    """A power cut empties a file, or it is missing: the training runs again."""
    (result,) = store.results(study, [ONE])
    before = (result.folder / EVAL).read_bytes()
    (result.folder / name).unlink()
    if content is not None:
        (result.folder / name).write_bytes(content)
    (again,) = store.results(study, [ONE])
    assert len(work) == 2
    assert (again.folder / EVAL).read_bytes() == before


def test_a_failed_training_keeps_its_log_and_ends_the_others(study: Study, work: list[str]) -> None:
    """It has no result. A study that reads the ends itself goes on with the next training."""
    bad = Training("bad", {"train.lr": 0.3}, "bad")
    with refuses(("bad", "failed")):
        store.results(study, [bad, OTHER])
    assert work == ["bad"]
    ends = list(store.run(study, [bad, OTHER]))
    assert [len(failures) for *_, failures in ends] == [1, 0]
    assert (study.result(bad) / runner.LOG).read_text() == "what it said"
    assert study.hashes(OTHER)


def test_nothing_is_kept_from_a_cache_that_was_damaged_meanwhile(
    study: Study, work: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of this start go; those of an earlier one stay."""
    store.results(study, [ONE])
    monkeypatch.setattr(workcopy, "repair_cache", lambda _: True)
    with pytest.raises(UserError):
        store.results(study, [ONE, OTHER])
    assert (bool(study.hashes(ONE)), bool(study.hashes(OTHER)), len(work)) == (True, False, 2)


def test_a_start_finds_the_checkpoints_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work copies of a killed start are made anew. After a study without an error its folder is gone."""
    monkeypatch.chdir(create_project(tmp_path / "project"))
    folder = workcopy.FOLDER / "mine"
    for name in (store.SOURCE, store.RUNS, "one-1"):
        files.write_text(folder / name / "file", "")
    with store.study_folder("mine", "mine"):
        assert [path.name for path in folder.glob("*/")] == [store.RUNS]
    assert not folder.exists()
