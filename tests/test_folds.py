"""`perennial folds` tests every image once, by a model not trained on it; a killed study gives the same bytes."""

import itertools
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.base import files
from pipeline.base.errors import DIFFERENT, Kind
from pipeline.commands import folds
from pipeline.config import params
from pipeline.reporting.gallery import Album
from pipeline.studies import answers, record, runner, store, study, workcopy
from pipeline.studies.pooling import FoldPredictions
from pipeline.studies.record import Part, Record
from pipeline.studies.store import Result, Study
from pipeline.studies.workcopy import WorkCopy
from tests.conftest import on_cpu, read_params, write_params
from tests.helpers import studies
from tests.helpers.projects import call, create_project, link_code
from tests.helpers.refusals import refuses
from tests.helpers.trainings import wait_for, working_in

SMALL: dict[str, Any] = {
    "data__source": "synthetic", "data__synthetic__count": 60, "data__synthetic__size": 48, "split__stratify": True,
    "train__epochs": 15, "run__epoch_checkpoint_seconds": 0,
}  # fmt: skip
TABLES = ("predictions.csv", "label_errors.csv")
FOLDER = workcopy.FOLDER / "folds"
TWO_FOLDS = ("folds", "--folds", "2", "--jobs", "2")
A_PART = Part(seed=0, fold=0, images=10, right=5, model="a" * 32, predictions="b" * 32)
A_RECORD = Record(params={"split.folds": 2, "train.lr": 0.1}, data={"split": "c"}, figures={}, parts=(A_PART,))


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which two folds were trained and tested, two at a time; so many epochs that a kill meets one."""
    project = create_project(tmp_path_factory.mktemp("folds") / "project", **SMALL)
    call(project, "python", "-m", "pipeline", *TWO_FOLDS)
    return project


def outputs(project: Path) -> dict[str, Any]:
    """The MD5 of every file that a study writes, and the record without its commit: each project has another one."""
    folder = project / "metrics/folds"
    summary = record.read(folder / "summary.json")
    return {name: files.md5(folder / name) for name in TABLES} | {
        "page": files.md5(project / "reports/folds.html"),
        "record": replace(summary, origin=replace(summary.origin, commit="")),
    }


@pytest.mark.nightly("trains two folds under DVC; make test-ci sweeps, with the same runner and work copies")
def test_every_image_is_tested_once(studied: Path) -> None:
    """The table has each drawn image once, the record counts them, and the accuracy is that of the table."""
    rows = files.read_csv(studied / "metrics/folds/predictions.csv")
    assert len({row["path"] for row in rows}) == len(rows) == 60
    summary = record.read(studied / "metrics/folds/summary.json")
    assert summary.figures["images"] == sum(part.images for part in summary.parts) == 60
    assert summary.origin.commit == call(studied, "git", "rev-parse", "HEAD").stdout.strip()
    assert len(summary.origin.images) == 64
    right = sum(row["label"] == row["prediction"] for row in rows)
    assert summary.figures["accuracy"] == pytest.approx(right / 60, abs=1e-9)
    assert "perennial folds --folds 2 --seeds 1" in (studied / "reports/folds.html").read_text()
    # In the folder of the user Git sees the tables alone: no params, no dvc.lock and no work copy.
    assert call(studied, "git", "status", "--short").stdout == "?? metrics/\n"
    assert not (studied / FOLDER).exists()


@pytest.mark.nightly(
    "a study under DVC that is killed three times; make test has the store, and kills jobs and trainings"
)
def test_a_study_that_is_killed_gives_the_same_bytes(studied: Path, tmp_path: Path) -> None:
    """The command, a DVC and a training in a work copy are killed (KILL), and an object of the cache is emptied."""
    project = create_project(tmp_path / "killed" / "project", **SMALL)
    source, last, copies = random.Random(27), 0, project / FOLDER
    for victim in ((), ("dvc", "repro"), ("pipeline", "train")):
        studies.remove_logs(copies)
        process = studies.start(project, *TWO_FOLDS)
        last += source.randrange(1, 4)  # a training goes on from its last epoch
        wait_for(lambda: process.poll() is not None or studies.copies_at(copies, last), "no epoch")  # noqa: B023
        assert process.poll() is None, "it ended before the kill"
        if victim:
            copy = source.choice(studies.copies_at(copies, last))
            next(one for one in working_in(copy, *victim) if Path(one.cwd()) == copy).kill()
            assert process.wait() == 1
        else:
            process.kill()
            process.wait()
            wait_for(lambda: not working_in(copies), "what it started goes on")
        assert not working_in(copies)
        assert not (project / "metrics/folds").exists()
    objects = (project / ".dvc/cache/files/md5").rglob("*")
    damaged = next(path for path in objects if path.is_file() and path.suffix != ".dir")
    damaged.chmod(0o644)
    damaged.write_bytes(b"")
    done = call(project, "python", "-m", "pipeline", *TWO_FOLDS)
    assert str(damaged.relative_to(project)) in done.stderr
    assert outputs(project) == outputs(studied)
    again = call(project, "python", "-m", "pipeline", *TWO_FOLDS)
    assert "epoch" not in again.stdout
    assert outputs(project) == outputs(studied)


@pytest.mark.nightly("two more folds; make test has the comparison of a recipe with what it gives")
def test_a_recipe_is_repeated_by_its_name(studied: Path, tmp_path: Path) -> None:
    """From a folder with other params, the record of the study gives the same bytes again, and says so."""
    project = shutil.copytree(studied, tmp_path / "project", symlinks=True)
    recipe = project / record.RECIPES / "mine.json"
    recipe.parent.mkdir(parents=True)
    recipe.write_bytes((studied / "metrics/folds/summary.json").read_bytes())
    other: dict[str, Any] = {"train__lr": 0.3, "train__epochs": 1, "split__seed": 5}
    write_params(project / params.FILE, on_cpu(read_params(), **(SMALL | other)))
    done = call(project, "python", "-m", "pipeline", "folds", "--recipe", "mine")
    assert "folds: mine: the same bytes as recorded" in done.stdout
    assert "perennial folds --recipe mine" in (project / "reports/folds.html").read_text()


def with_split(folder: Path, config: params.Params, tested: dict[str, bool], **hashes: str) -> Result:
    """A result whose split.csv has these images: path → whether it is a test image."""
    rows = [(path, "a", "test" if is_test else "train", "", 9, 9, "", "", "") for path, is_test in tested.items()]
    header = ("path", "class", "split", "reason", "width", "height", "pixels", "phash", "group")
    files.write_csv(folder / config.paths.split, header, rows)
    return Result(folder, config, hashes)


@pytest.mark.parametrize(
    ("first", "second", "key", "kind"),
    [
        ({"a": True, "b": False}, {"a": True, "b": False}, "a", "pair"),
        ({"a": True, "b": False, "c": False}, {"a": False, "b": True, "c": False}, "c", "missing"),
    ],
)
def test_folds_that_do_not_test_every_image_once_are_refused(
    first: dict[str, bool], second: dict[str, bool], key: str, kind: Kind, raw: dict[str, Any], tmp_path: Path
) -> None:
    """With the name of the image."""
    config = params.parse(on_cpu(raw))
    with refuses((key, kind)):
        answers.check([with_split(tmp_path / str(number), config, one) for number, one in enumerate((first, second))])


def test_several_seeds_are_one_record(
    raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The split of each fold is there once, each training has its model and its answers, figures are rounded; a label
    is suspected by the mean of all seeds.
    """
    monkeypatch.chdir(tmp_path)
    link_code(tmp_path)
    monkeypatch.setattr(study, "album", lambda *_: Album({}, {}))
    config = params.parse(on_cpu(raw))
    results = {
        (seed, fold): with_split(tmp_path / f"{seed} {fold}", config, {}, **{
            "data/split.csv": f"s{fold}", "models/model.safetensors": f"m{seed}{fold}",
            "metrics/predictions.csv": f"p{seed}{fold}"})
        for seed, fold in itertools.product((4, 5), (0, 1))
    }  # fmt: skip
    for number, (device, capability) in enumerate((("A GPU", "AVX512"), ("A CPU", "AVX2"), ("A CPU", "AVX2"))):
        facts = results[4 + number // 2, number % 2].folder / "runs/a/provenance.json"
        files.write_json(facts, {"device": device, "cpu_capability": capability})
    (facts.parent / "../b").mkdir()
    (facts.parent / "../b/provenance.json").write_text('{"device": "cut')
    runs = Study("folds", WorkCopy(tmp_path, config), tmp_path, [], (), (), commit="a commit")
    (tmp_path / config.paths.images).mkdir(parents=True)
    of_first = [[0.9, 0.1], [0.1, 0.9], [0.8, 0.2], [0.05, 0.95]]  # the last one is a label error of the first seed
    of_second = [[0.9, 0.1], [0.1, 0.9], [0.7, 0.3], [0.9, 0.1]]  # alone
    predictions = FoldPredictions(
        ("a", "b"), ("1", "2", "3", "4"), np.array([0, 1, 0, 0]), np.arange(4) % 2, (4, 5),
        np.array([of_first, of_second]),
    )  # fmt: skip
    result = answers.write(config, runs, results, predictions, "perennial folds")
    assert (result.origin.commit, result.origin.hardware) == ("a commit", "A CPU, AVX2; A GPU, AVX512")
    assert result.data == {"data/split.csv of fold 0": "s0", "data/split.csv of fold 1": "s1"}
    assert [(part.seed, part.fold, part.model, part.predictions) for part in result.parts] == [
        (seed, fold, f"m{seed}{fold}", f"p{seed}{fold}") for seed in (4, 5) for fold in (0, 1)
    ]
    assert all(value == round(value, answers.DIGITS) for value in result.figures.values())
    assert files.read_csv(Path("metrics/folds/label_errors.csv")) == []
    assert re.findall(r"0\.\d+ ± 0\.\d+", capsys.readouterr().out) == ["0.8750 ± 0.2500", "0.8750 ± 0.1768"]


def test_a_study_without_the_photos_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a clone by a colleague: by the name of the setting, before a stage of DVC fails."""
    gone = str(tmp_path / "gone")
    monkeypatch.chdir(create_project(tmp_path / "project", data__source="folder", paths__inbox=gone))
    with refuses(("paths.inbox", "missing")):
        store.of_project("folds", tmp_path / "study", {}, [runner.here()])


def test_a_recipe_brings_its_params_and_seeds(raw: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever params.yaml has. Other bytes than recorded have another exit status, and both accuracies are said."""
    recipe = replace(A_RECORD, parts=(A_PART, replace(A_PART, seed=7)))
    plan = folds.make_plan(params.parse(on_cpu(raw, train__lr=0.7, split__folds=9)), None, None, 1, recipe)
    assert plan.changes(7, 1) == {"split.folds": 2, "train.lr": 0.1, "split.fold": 1, "train.seed": 7}
    assert (plan.folds, plan.seeds) == (2, [0, 7])
    for values, seeds, expected in (({}, None, (5, [0])), ({"split__folds": 7, "train__seed": 3}, 2, (7, [3, 4])),
                                ({"train__seed": 2**32 - 1}, 2, (5, [2**32 - 1, 0]))):  # fmt: skip
        plan = folds.make_plan(params.parse(on_cpu(read_params(), **values)), None, seeds, 1, None)
        assert (plan.folds, list(plan.seeds)) == expected
    recipe = replace(A_RECORD, figures={"accuracy": 0.5, "accuracy_low": 0.4, "accuracy_high": 0.6})
    assert folds.compare_with_recipe(recipe, recipe, "mine") == 0
    other = replace(recipe, data={"split": "d"}, figures=recipe.figures | {"accuracy": 0.25})
    assert folds.compare_with_recipe(recipe, other, "mine") == DIFFERENT
    said = ["0.2500", "0.4000", "0.6000", "0.5000", "0.4000", "0.6000"]
    assert re.findall(r"0\.\d+", capsys.readouterr().out) == said


def test_records_that_differ_say_in_what(tmp_path: Path) -> None:
    """Params, images, models or answers; equal ones say nothing."""
    record.write(tmp_path / "a.json", A_RECORD)
    whole = replace(A_RECORD, params=record.decisive(params.Params()) | A_RECORD.params)
    assert list(record.differences(record.read(tmp_path / "a.json"), whole)) == []
    other = replace(A_RECORD, params={"split.folds": 2, "train.lr": 0.2}, parts=(replace(A_PART, model="d" * 32),))
    more = replace(A_RECORD, data={"split": "e"}, parts=(replace(A_PART, predictions="f"), replace(A_PART, fold=1)))
    lines = [*record.differences(A_RECORD, other), *record.differences(A_RECORD, more)]
    assert [line.partition(": ")[2] for line in lines] == [
        "train.lr", "seed 0 fold 0", "split", "seed 0 fold 1", "seed 0 fold 0, seed 0 fold 1",
    ]  # fmt: skip
