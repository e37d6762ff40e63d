"""`perennial folds` tests every image once, by a model not trained on it; a killed study gives the same bytes."""

import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pipeline.base import files
from pipeline.base.errors import Kind, UserError
from pipeline.commands import folds
from pipeline.config import params
from pipeline.data.splitting import Cut
from pipeline.evaluation import label_errors
from pipeline.evaluation.pooling import FoldPredictions
from pipeline.planning import estimate
from pipeline.planning.survey import Survey
from pipeline.reporting.gallery import Album
from pipeline.reruns import answers, record, runner
from pipeline.reruns.record import Part, Record
from pipeline.reruns.workcopy import WorkCopy
from pipeline.versioning import dvc_lock, integrity
from tests.conftest import PROJECT, on_cpu, read_params, write_params
from tests.helpers.datasets import put
from tests.helpers.projects import call, create_project, link_code
from tests.helpers.refusals import refuses
from tests.helpers.trainings import wait_for

SMALL: dict[str, Any] = {
    "data__source": "synthetic", "data__synthetic__count": 60, "data__synthetic__size": 48, "split__stratify": True,
    "train__epochs": 2, "evaluate__onnx": False,
}  # fmt: skip
TABLES = ("predictions.csv", "label_errors.csv")
A_PART = Part(seed=0, fold=0, images=10, right=5, model="a" * 32, predictions="b" * 32)
A_RECORD = Record(params={"split.folds": 2, "train.lr": 0.1}, data={"split": "c"}, figures={}, parts=(A_PART,))


STUDY = pytest.mark.slow("trains two folds under DVC; make test sweeps, with the same runner and work copies")


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which two folds were trained and tested, two at a time."""
    project = create_project(tmp_path_factory.mktemp("folds") / "project", **SMALL)
    call(project, "python", "-m", "pipeline", "folds", "--folds", "2", "--jobs", "2")
    return project


def outputs(project: Path) -> dict[str, Any]:
    """The MD5 of every file that a study writes, and the record without its commit: each project has another one."""
    folder = project / "metrics/folds"
    study = record.read(folder / "summary.json")
    return {name: files.md5(folder / name) for name in TABLES} | {
        "page": files.md5(project / "reports/folds.html"),
        "record": replace(study, origin=replace(study.origin, commit="")),
    }


@STUDY
def test_every_image_is_tested_once(studied: Path) -> None:
    """The table has each drawn image once, the record counts them, and the accuracy is that of the table."""
    rows = files.read_csv(studied / "metrics/folds/predictions.csv")
    assert Counter(row["path"] for row in rows).most_common(1)[0][1] == 1
    found = json.loads((studied / "metrics/folds/summary.json").read_bytes())
    assert len(rows) == found["figures"]["images"] == sum(part["images"] for part in found["parts"]) == 60
    assert found["origin"]["commit"] == call(studied, "git", "rev-parse", "HEAD").stdout.strip()
    assert len(found["origin"]["images"]) == 64
    right = sum(row["label"] == row["prediction"] for row in rows)
    assert found["figures"]["accuracy"] == pytest.approx(right / 60, abs=1e-9)
    assert "perennial folds --folds 2 --seeds 1" in (studied / "reports/folds.html").read_text()


@STUDY
def test_the_folder_of_the_user_stays_as_it_is(studied: Path) -> None:
    """No params, no dvc.lock and no working copy: Git sees the three tables alone."""
    assert call(studied, "git", "status", "--short").stdout == "?? metrics/\n"
    assert not (studied / folds.FOLDER).exists()


def in_copies(project: Path, *words: str) -> list[psutil.Process]:
    """The processes that work in a work copy of a study and have all these words in their command."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            command = process.cmdline()
            if Path(process.cwd()).is_relative_to(project / folds.FOLDER) and all(word in command for word in words):
                found.append(process)
    return found


def trained(project: Path, epoch: int) -> list[Path]:
    """The work copies whose log has this epoch or a later one."""
    logs = (project / folds.FOLDER).glob(f"*/{runner.LOG}")
    return [log.parent for log in logs if any(int(k) >= epoch for k in re.findall(r"epoch (\d+)/", log.read_text()))]


def start_study(project: Path) -> subprocess.Popen[bytes]:
    """Three folds, two at a time."""
    command = [sys.executable, "-m", "pipeline", "folds", "--folds", "3", "--jobs", "2"]
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with (project.parent / "said").open("ab") as said:
        return subprocess.Popen(command, cwd=project, env=environ, stdout=said, stderr=said)


@pytest.mark.slow("two studies of three trainings each under DVC, one of them killed three times")
def test_a_study_that_is_killed_three_times_gives_the_same_bytes(tmp_path: Path) -> None:
    """The command, a DVC in a work copy, and a training are killed (KILL), at moments that are drawn. A power cut also
    empties an object of the cache. Each start takes what has ended from the run cache, and a last one trains nothing.
    """
    settings = SMALL | {"train__epochs": 40, "run__epoch_checkpoint_seconds": 0}
    project = create_project(tmp_path / "killed" / "project", **settings)
    drawn, last = random.Random(27), 0
    for victim in ("command", "dvc", "training"):
        for log in (project / folds.FOLDER).glob(f"*/{runner.LOG}"):
            log.unlink()  # of the start before
        process, last = start_study(project), last + drawn.randrange(1, 4)  # a training goes on from its last epoch
        wait_for(lambda: process.poll() is not None or trained(project, last), "no epoch")  # noqa: B023
        assert process.poll() is None, "it ended before the kill"
        copy = drawn.choice(trained(project, last))
        if victim == "command":
            process.kill()
        else:
            words = ("dvc", "repro") if victim == "dvc" else ("pipeline", "train")
            next(one for one in in_copies(project, *words) if Path(one.cwd()) == copy).kill()
        status = process.wait()
        assert status == (-signal.SIGKILL if victim == "command" else 1)
        if victim == "command":
            wait_for(lambda: not in_copies(project), "what it started goes on")
        assert not in_copies(project)
        assert not (project / "metrics/folds").exists()
    objects = (project / ".dvc/cache/files/md5").rglob("*")
    emptied = next(path for path in objects if path.is_file() and path.suffix != ".dir")
    emptied.chmod(0o644)
    emptied.write_bytes(b"")
    done = call(project, "python", "-m", "pipeline", "folds", "--folds", "3", "--jobs", "2")
    assert str(emptied.relative_to(project)) in done.stderr
    whole = create_project(tmp_path / "whole" / "project", **settings)
    call(whole, "python", "-m", "pipeline", "folds", "--folds", "3", "--jobs", "2")
    assert outputs(project) == outputs(whole)
    again = call(project, "python", "-m", "pipeline", "folds", "--folds", "3")
    assert "epoch" not in again.stdout
    assert outputs(project) == outputs(whole)


def test_the_time_is_measured_on_the_cores_of_one_training(
    raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three folds with two seeds, four at a time: twice as long as one training."""
    config, measured, before = params.parse(on_cpu(raw)), [], os.sched_getaffinity(0)

    def parts(changed: params.Params, _: Survey) -> list[estimate.Part]:
        measured.append((changed.split.folds, os.sched_getaffinity(0)))
        return [estimate.Part("train", 600.0, "")]

    monkeypatch.setattr(estimate, "measure_parts", parts)
    chosen = folds.make_study(config, 3, 2, 4, None)
    folds.announce(config, Survey("here", 1, {"": 9}, Cut("", ("test",))), chosen)
    assert measured == [(3, set(chosen.slots[0].cores))]
    assert os.sched_getaffinity(0) == before
    assert estimate.time_in_words(1200.0) in capsys.readouterr().out


@pytest.mark.slow("a study of one more fold")
def test_a_recipe_is_repeated_by_its_name(studied: Path, tmp_path: Path) -> None:
    """From a folder with other params, the record of the study gives the same bytes again, and says so. The page has
    the command.
    """
    project = shutil.copytree(studied, tmp_path / "project", symlinks=True)
    recipe = project / record.RECIPES / "mine.json"
    recipe.parent.mkdir(parents=True)
    recipe.write_bytes((studied / "metrics/folds/summary.json").read_bytes())
    other: dict[str, Any] = {"train__lr": 0.3, "train__epochs": 1, "split__seed": 5}
    write_params(project / params.FILE, on_cpu(read_params(), **(SMALL | other)))
    done = call(project, "python", "-m", "pipeline", "folds", "--recipe", "mine")
    assert "folds: mine: the same bytes as recorded" in done.stdout
    assert "perennial folds --recipe mine" in (project / "reports/folds.html").read_text()


def with_split(folder: Path, config: params.Params, tested: dict[str, bool]) -> WorkCopy:
    """A copy whose split.csv has these images: path → whether it is a test image."""
    rows = [(path, "a", "test" if is_test else "train", "", 9, 9, "", "", "") for path, is_test in tested.items()]
    header = ("path", "class", "split", "reason", "width", "height", "pixels", "phash", "group")
    files.write_csv(folder / config.paths.split, header, rows)
    return WorkCopy(folder, config)


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
    """Before anything is trained, with the name of the image."""
    config = params.parse(raw)
    made = {fold: with_split(tmp_path / str(fold), config, of) for fold, of in enumerate((first, second))}
    with refuses((key, kind)):
        answers.check(made)


def test_folds_are_checked_before_anything_is_trained(
    raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a study whose folds do not test every image only `split` has run."""
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path / params.FILE, on_cpu(raw, data__source="synthetic"))
    tested = ({"a": True, "b": False, "c": False}, {"a": False, "b": True, "c": False})
    made = {(0, fold): with_split(tmp_path / str(fold), params.load(), of) for fold, of in enumerate(tested)}
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(folds, "make_copies", lambda *_: made)
    monkeypatch.setattr(integrity, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(folds, "announce", lambda *_: None)
    monkeypatch.setattr(runner, "run_or_raise", lambda jobs, *_: ran.extend(job.stages for job in jobs))
    with refuses(("c", "missing")):
        folds.folds(Namespace(folds=2, seeds=None, jobs=1, recipe=None))
    assert ran == [("split",), ("split",)]


@STUDY
def test_the_label_errors_are_those_of_the_answers(studied: Path) -> None:
    """label_errors.csv follows from predictions.csv."""
    answered = files.read_csv(studied / "metrics/folds/predictions.csv")
    classes = [name.removeprefix("p_") for name in answered[0] if name.startswith("p_")]
    chances = np.array([[float(row[f"p_{name}"]) for name in classes] for row in answered])
    found = label_errors.find(chances, np.array([classes.index(row["label"]) for row in answered]))
    header, rows = label_errors.table(found, [row["path"] for row in answered], classes)
    files.write_csv(studied / ".dvc/tmp/expected.csv", header, rows)
    assert (studied / "metrics/folds/label_errors.csv").read_bytes() == (studied / ".dvc/tmp/expected.csv").read_bytes()


def test_several_seeds_are_one_record(
    raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The split of each fold is there once, each training has its model and its answers, figures are rounded; a label
    is suspected by the mean of all seeds.
    """
    monkeypatch.chdir(tmp_path)
    link_code(tmp_path)
    monkeypatch.setattr(answers, "_album", lambda *_: Album({}, {}))
    config = params.parse(on_cpu(raw))
    made = {}
    for seed, fold in itertools.product((4, 5), (0, 1)):
        made[seed, fold] = with_split(tmp_path / f"{seed} {fold}", config, {})
        md5s = {"split": ("data/split.csv", f"s{fold}"), "train": ("models/model.safetensors", f"m{seed}{fold}"),
                "evaluate": ("metrics/predictions.csv", f"p{seed}{fold}")}  # fmt: skip
        (tmp_path / f"{seed} {fold}" / config.paths.images).mkdir(parents=True)
        stages = {stage: {"cmd": "", "outs": [{"path": out, "md5": md5}]} for stage, (out, md5) in md5s.items()}
        write_params(tmp_path / f"{seed} {fold}" / dvc_lock.LOCK, {"schema": "2.0", "stages": stages})
    of_first = [[0.9, 0.1], [0.1, 0.9], [0.8, 0.2], [0.05, 0.95]]  # the last one is a label error of the first seed
    of_second = [[0.9, 0.1], [0.1, 0.9], [0.7, 0.3], [0.9, 0.1]]  # alone
    predictions = FoldPredictions(
        ("a", "b"), ("1", "2", "3", "4"), np.array([0, 1, 0, 0]), np.arange(4) % 2, (4, 5),
        np.array([of_first, of_second]),
    )  # fmt: skip
    found = answers.write(config, made, predictions, "perennial folds", "a commit")
    assert found.origin.commit == "a commit"
    assert found.data == {"data/split.csv of fold 0": "s0", "data/split.csv of fold 1": "s1"}
    assert [(part.seed, part.fold, part.model, part.predictions) for part in found.parts] == [
        (seed, fold, f"m{seed}{fold}", f"p{seed}{fold}") for seed in (4, 5) for fold in (0, 1)
    ]
    assert all(value == round(value, record.DIGITS) for value in found.figures.values())
    assert files.read_csv(Path("metrics/folds/label_errors.csv")) == []
    said = capsys.readouterr().out
    assert re.search(r"of one fold +0\.8750 ± 0\.2500 \(mean and standard deviation of 4\)\n", said)
    assert re.search(r"of one seed +0\.8750 ± 0\.1768 \(of 2\)\n", said)


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        ((1, None, 1), "--folds", "1"), ((0, None, 1), "--folds", "0"), ((None, 101, 1), "--seeds", "101"),
        ((None, 0, 1), "--seeds", "0"), ((None, None, 0), "--jobs", "0"),
    ],
)  # fmt: skip
def test_an_option_that_is_not_allowed_is_refused(
    options: tuple[int | None, int | None, int], key: str, value: str, raw: dict[str, Any]
) -> None:
    """It names the option and the value."""
    with pytest.raises(UserError) as refused:
        folds.make_study(params.parse(on_cpu(raw)), *options, recipe=None)
    assert [(fault.key, fault.value, fault.kind) for fault in refused.value.faults] == [(key, value, "value")]


@pytest.mark.parametrize(
    ("number", "split", "kind", "words"),
    [(5, "", "value", ("'emu'", "'fox'", "--folds 3")), (3, "", "", ()), (3, "test", "pair", ("3 of 18", "photos"))],
)
def test_images_that_cannot_all_be_tested_are_refused_at_once(
    number: int, split: str, kind: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the folders or the table alone, before a step is measured. Each class is named, with the way out."""
    project = tmp_path / "project"
    for name in ("params.yaml", "data/corrections.csv"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PROJECT / name, project / name)
    values: dict[str, Any] = {"data__source": "folder", "paths__inbox": "photos"}
    write_params(project / params.FILE, on_cpu(read_params(), **values))
    monkeypatch.chdir(project)
    names = [
        f"{label}/{number}.png" for label, count in (("cat", 11), ("emu", 4), ("fox", 3)) for number in range(count)
    ]
    for name in names:
        put(Path("photos") / name, 0)
    if split:
        rows = [f"{name},{name.split('/')[0]},{split if name.endswith('/0.png') else ''}" for name in names]
        Path("photos/labels.csv").write_text("\n".join(["path,label,split", *rows]))
    monkeypatch.setattr(estimate, "measure_parts", lambda *_: sys.exit())
    arguments = Namespace(folds=number, seeds=None, jobs=1, recipe=None)
    with pytest.raises(UserError if kind else SystemExit) as refused:
        folds.folds(arguments)
    faults = getattr(refused.value, "faults", ())
    assert [(fault.key, fault.kind) for fault in faults] == [("--folds", kind)] * bool(kind)
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize(
    ("wrong", "key", "kind"),
    [
        ({}, "--folds", "value"),
        ({"split.folds": "two"}, "split.folds", "value"),
        ({"split.folds": 2, "nope.lr": 1}, "nope", "unknown"),
        ({"split.folds": 2, "train.lr.high": 1}, "train.lr", "value"),
    ],
)
def test_a_recipe_with_a_fault_is_refused(wrong: dict[str, Any], key: str, kind: Kind, raw: dict[str, Any]) -> None:
    """It names the param, whatever is wrong with it."""
    with refuses((key, kind)):
        folds.make_study(params.parse(on_cpu(raw)), None, None, 1, replace(A_RECORD, params=wrong))


def test_params_that_cannot_run_here_are_refused(raw: dict[str, Any]) -> None:
    """Before a copy is made; so is a recipe with folds or seeds beside it."""
    with refuses(("train.precision", "pair")):
        folds.make_study(params.parse(on_cpu(raw, train__precision="tf32")), 2, None, 1, None)
    for number, seeds in ((2, None), (None, 2)):
        with refuses(("--recipe", "pair")):
            folds.make_study(params.parse(on_cpu(raw)), number, seeds, 1, A_RECORD)


def test_a_recipe_brings_its_params_and_seeds(raw: dict[str, Any]) -> None:
    """Whatever params.yaml has."""
    recipe = replace(A_RECORD, parts=(A_PART, replace(A_PART, seed=7)))
    chosen = folds.make_study(params.parse(on_cpu(raw, train__lr=0.7, split__folds=9)), None, None, 1, recipe)
    assert chosen.changes(7, 1) == {"split.folds": 2, "train.lr": 0.1, "split.fold": 1, "train.seed": 7}
    assert (chosen.folds, chosen.seeds) == (2, [0, 7])


def test_a_repeated_recipe_with_other_bytes_has_another_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    """It says what differs, and both accuracies."""
    recipe = replace(A_RECORD, figures={"accuracy": 0.5})
    assert folds.compare_with_recipe(recipe, recipe, "mine") == 0
    other = replace(recipe, data={"split": "d"}, figures={"accuracy": 0.25})
    assert folds.compare_with_recipe(recipe, other, "mine") == folds.DIFFERENT
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "folds: mine: accuracy 0.2500, recorded 0.5000", "folds: mine: other images or their split: split"
    ]  # fmt: skip


def test_the_params_say_the_number_of_folds_unless_the_option_does(raw: dict[str, Any]) -> None:
    """split.folds if it is above 1, else 5; the seeds follow train.seed."""
    assert folds.make_study(params.parse(on_cpu(raw)), None, None, 1, None).folds == 5
    config = params.parse(on_cpu(raw, split__folds=7, train__seed=3))
    assert folds.make_study(config, None, 2, 1, None).folds == 7
    assert list(folds.make_study(config, None, 2, 1, None).seeds) == [3, 4]
    last = params.parse(on_cpu(raw, train__seed=2**32 - 1))
    assert list(folds.make_study(last, None, 2, 1, None).seeds) == [2**32 - 1, 0]


def test_records_that_differ_say_in_what(tmp_path: Path) -> None:
    """Params, images, models or answers; equal ones say nothing. A file gives back what was written, and the default
    value of each setting that came after it."""
    record.write(tmp_path / "a.json", A_RECORD)
    whole = replace(A_RECORD, params=record.decisive(params.Params()) | A_RECORD.params)
    assert list(record.differences(record.read(tmp_path / "a.json"), whole)) == []
    other = replace(A_RECORD, params={"split.folds": 2, "train.lr": 0.2}, parts=(replace(A_PART, model="d" * 32),))
    assert list(record.differences(A_RECORD, other)) == ["other params: train.lr", "other models: seed 0 fold 0"]
    more = replace(A_RECORD, data={"split": "e"}, parts=(replace(A_PART, predictions="f"), replace(A_PART, fold=1)))
    assert list(record.differences(A_RECORD, more)) == [
        "other images or their split: split", "other models: seed 0 fold 1",
        "other answers: seed 0 fold 0, seed 0 fold 1",
    ]  # fmt: skip
    (tmp_path / "a.json").write_text("{}")
    with refuses((tmp_path / "a.json", "damaged")):
        record.read(tmp_path / "a.json")
