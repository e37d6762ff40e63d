"""The estimate of a run: real training steps with the given params, and the sum of its parts."""

import importlib.util
import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.base import files
from pipeline.checks import machine, validity
from pipeline.checks.machine import Machine
from pipeline.config import params
from pipeline.data import corrections
from pipeline.learning.environment import required_variables
from pipeline.planning import estimate, survey
from pipeline.planning.estimate import Times
from pipeline.planning.survey import Survey
from pipeline.running import launchers
from pipeline.sources import originals
from tests.conftest import PROJECT, change, on_cpu
from tests.helpers import starts
from tests.helpers.datasets import put, settings, two_classes
from tests.helpers.refusals import refuses


def test_the_parts_are_those_of_the_run(raw: dict[str, Any]) -> None:
    """Steps, validations of all epochs, every image read once, the starts of the stages, the images of evaluate."""
    changes = {"train__epochs": 10, "train__batch_size": 8, "train__parallel": "ddp", "run__processes": 2}
    config = params.parse(on_cpu(raw, evaluate__batch_size=2, **changes))
    times = Times(start=2.0, first_step=1.0, step=0.5, validation=0.1)
    train, reading, rest = estimate.parts(config, Survey("here", 2, {"": 100}), times, reading=0.01)
    assert train.seconds == pytest.approx(1 + 100 * 0.5 + 10 * 6 * 0.1)  # 80 train images, 10 val: 5 batches of 2
    assert re.findall(r"[\d.]+", train.reason) == ["100", "0.5", "10", "0.6"]
    assert reading.seconds == pytest.approx(1.0)
    assert rest.seconds == pytest.approx(estimate.STARTS * 2 + 10 * 0.1)  # 10 test images, 10 val: 5 batches of 2
    assert "70 seconds" in estimate.describe_total(config, [train, reading, rest])
    patient = params.parse(on_cpu(raw, train__patience=3))
    assert estimate.describe_total(patient, [train]).startswith("at most ")
    assert not re.search(r"\d", estimate.describe_total(config, []))


@pytest.fixture
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An inbox of two classes in the working folder."""
    monkeypatch.chdir(tmp_path)
    files.write_text(corrections.FILE, corrections.EMPTY)
    return two_classes(tmp_path / "data/inbox")


@pytest.mark.slow("a real start of two processes; make test measures in this process")
@pytest.mark.usefixtures("inbox")
def test_the_steps_are_real_with_two_processes(raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes meet, train and validate on random images, also with more weighted classes than in a batch."""
    changes = {"train__parallel": "ddp", "run__processes": 2, "train__class_weights": "balanced"}
    changes |= {"train__model": "mobilenet_v3_small", "train__crop": 32, "prepare__size": 40}
    config = params.parse(on_cpu(raw, data__source="inbox", **changes))
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    before = dict(os.environ)
    lines = list(estimate.report_lines(config, replace(survey.survey(config), classes=100)))
    assert dict(os.environ) == before  # a preset that is measured next has other threads
    assert lines.pop().startswith("note: ")  # other programs use the cores
    assert [line.split("  ")[1] for line in lines[2:]] == ["train", "split and prepare", "everything else"]
    assert "steps: 2 of" in lines[2]
    assert "images: 20 of" in lines[3]


def test_a_solved_head_is_measured_without_steps(raw: dict[str, Any], tmp_path: Path) -> None:
    """Such a training has no step. The time of an image is measured all the same."""
    config = params.parse(on_cpu(raw, train__head="solved", train__freeze_backbone=True, train__freeze_norm=True))
    (tmp_path / estimate.TRIAL).write_text(json.dumps({"params": config.model_dump(mode="json"), "classes": 2}))
    environ = {**os.environ, **required_variables(1, True), **launchers.ALONE}
    done = starts.run([sys.executable, "-m", "pipeline", "rank", "trial", str(tmp_path)], cwd=PROJECT, env=environ)
    assert done.returncode == 0, done.stderr
    times = Times(**json.loads((tmp_path / estimate.TIMES).read_bytes()))
    assert (times.first_step, times.step) == (0, 0)
    assert min(times.start, times.validation) > 0


def test_a_login_node_of_slurm_measures_nothing(raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Params that need GPUs are accepted there, and the report says why it has no time."""
    monkeypatch.setattr(machine, "read", lambda: Machine(0, "missing", compiler=True))
    changes = {"train__precision": "fp32", "train__parallel": "ddp", "run__launcher": "slurm", "run__processes": 8}
    config = params.parse(change(raw, data__source="synthetic", **changes))
    assert not validity.faults(config, machine.read())
    lines = list(estimate.report_lines(config, survey.survey(config)))
    assert len(lines) == 2


def test_a_model_that_cannot_train_has_no_estimate(raw: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    """The error names the process, whose message is above."""
    broken = on_cpu(raw, train__model="alexnet", train__crop=16)
    with refuses(("process 0 of 1", "failed")):
        estimate.measure_times(params.parse(broken), 1)
    assert "Output size is too small" in capfd.readouterr().err


def test_images_are_counted_where_the_params_say(
    raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive before its download is not known. The list that another source leaves is none of its own."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/corrections.csv").write_text(corrections.EMPTY)
    for source, count in (("archive", 0), ("synthetic", 600)):
        assert survey.survey(params.parse(change(raw, data__source=source))).images == count
    for name, folder in (("archive", "data/images"), ("inbox", "data/inbox")):
        two_classes(tmp_path / folder)
        one = survey.survey(params.parse(change(raw, data__source=name)))
        assert (one.images, one.classes, one.where) == (20, 2, folder)
    shutil.rmtree("data/images")
    Path("data/images").mkdir()
    originals.write_manifest(Path("data/inbox"), Path("data/images"), workers=1)
    assert survey.survey(params.parse(change(raw, data__source="archive"))).images == 0
    Path("photos").mkdir()
    Path("photos/cat.dvc").write_text("outs: []\n")
    assert survey.is_empty(Path("photos"))
    Path("photos/dog.dvc").mkdir()
    assert not survey.is_empty(Path("photos"))


def test_videos_and_sidecars_are_no_images(tmp_path: Path) -> None:
    """What a phone writes beside a photo is not counted, and not decoded. An image may have any name."""
    two_classes(tmp_path)
    first = min((tmp_path / "cat").iterdir())
    first.unlink()
    (tmp_path / "cat/photo").write_bytes(b"\0\0\0\x14ftypheic\0\0\0\0mif1")
    (tmp_path / "cat/photo.MOV").write_bytes(b"\0\0\0\x14ftypqt  \0\0\0\0qt  ")
    (tmp_path / "dog/photo.AAE").write_bytes(b"bplist00")
    folder = survey.survey_folder(tmp_path)
    assert folder.images == 20
    assert tmp_path / "cat/photo" in folder.files
    assert not {tmp_path / "cat/photo.MOV", tmp_path / "dog/photo.AAE"} & {*folder.files}


def test_heic_without_its_decoder_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names of the files, with the command that installs the decoder; nothing is said where it is installed."""
    for path in two_classes(tmp_path).glob("cat/*"):
        path.rename(path.with_suffix(".HEIC"))
    assert survey.survey_folder(tmp_path).notes == ()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (note,) = survey.survey_folder(tmp_path).notes
    assert "10 of 20" in note
    assert "pip install pillow-heif==" in note


def test_a_given_split_is_counted_as_it_is(tmp_path: Path) -> None:
    """Folders train, val and test keep their images; class folders are split, and so is train if val is missing."""
    for seed, folder in enumerate(["train/a", "train/b", "train/b", "val/a", "val/b", "test/a", "test/b"]):
        put(tmp_path / folder / f"{seed}.png", seed)
    tenths = settings(folds=1)
    assert survey.survey_folder(tmp_path).parts(tenths) == {"train": 3, "val": 2, "test": 2}
    assert Survey("", 2, {"": 1000}).parts(tenths) == {"train": 800, "val": 100, "test": 100}
    for name in ("val/a/3.png", "val/b/4.png"):
        (tmp_path / name).unlink()
    for seed in range(7, 14):
        put(tmp_path / "train/a" / f"{seed}.png", seed)
    assert survey.survey_folder(tmp_path).parts(tenths) == {"train": 9, "val": 1, "test": 2}
