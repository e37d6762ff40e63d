"""The estimate of a run: real training steps with the given params, and the sum of its parts."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.config import machine, params, validity
from pipeline.config.machine import Machine
from pipeline.config.params import Fit, Grey
from pipeline.data import corrections, images, originals
from pipeline.planning import estimate, survey
from pipeline.planning.estimate import Times
from pipeline.planning.survey import Survey
from tests.conftest import PROJECT, change, on_cpu
from tests.helpers.datasets import put, settings, two_classes
from tests.helpers.refusals import refuses
from tests.helpers.terminals import Screen


def test_the_parts_are_those_of_the_run(raw: dict[str, Any]) -> None:
    """Steps and validations of all epochs, every image read once, the starts of the stages and the test images."""
    changes = {"train__epochs": 10, "train__batch_size": 8, "train__parallel": "ddp", "run__processes": 2}
    config = params.parse(on_cpu(raw, evaluate__batch_size=2, **changes))
    times = Times(start=2.0, first_step=1.0, step=0.5, validation=0.1)
    train, reading, rest = estimate.parts(config, Survey("here", 2, {"": 100}), times, reading=0.01)
    assert train.seconds == pytest.approx(1 + 100 * 0.5 + 10 * 6 * 0.1)  # 80 train images, 10 val: 5 batches of 2
    assert train.reason == "steps: 100 of 0.5 s; epochs: 10, each with 0.6 s of validation"
    assert reading.seconds == pytest.approx(1.0)
    assert rest.seconds == pytest.approx(estimate.STARTS * 2 + 6 * 0.1)
    assert estimate.describe_total(config, [train, reading, rest]).startswith("about 70 seconds on ")
    patient = params.parse(on_cpu(raw, train__patience=3))
    assert estimate.describe_total(patient, [train]).startswith("at most about 55 seconds on ")
    assert estimate.describe_total(config, []) == "not known before the images are here"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "about 5 seconds"), (38, "about 40 seconds"), (100, "about 2 minutes"), (560, "about 9 minutes"),
        (12_600, "about 3.5 hours"),
    ],
)  # fmt: skip
def test_a_time_is_said_in_words(seconds: float, words: str) -> None:
    """Rounded, because the machine is not always as busy as now."""
    assert estimate.time_in_words(seconds) == words


def test_the_steps_are_real_with_two_processes(
    raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes meet, train and validate on random images; the report has the total first, then its parts.

    More classes than images in a batch are no hindrance, also where each class has a weight.
    """
    two_classes(tmp_path / "data/inbox")
    (tmp_path / "data/corrections.csv").write_text(corrections.EMPTY)
    changes = {"train__parallel": "ddp", "run__processes": 2, "train__class_weights": "balanced"}
    config = params.parse(on_cpu(raw, data__source="inbox", **changes))
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.chdir(tmp_path)
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    lines = list(estimate.report_lines(config, replace(survey.survey(config), classes=100)))
    assert len(set(re.findall(r"measuring: (\d\d:\d\d)", screen.getvalue()))) > 1  # it shows that it goes on
    assert lines[1].startswith("Time of a run: about ")
    assert [line.split("  ")[1] for line in lines[2:]] == ["train", "split and prepare", "everything else"]
    assert "steps: 2 of" in lines[2]
    assert "images: 20 of" in lines[3]


def test_a_login_node_of_slurm_measures_nothing(raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Params that need GPUs are accepted there, and the report says why it has no time."""
    monkeypatch.setattr(machine, "read", lambda: Machine(0, "missing", compiler=True))
    changes = {"train__precision": "fp32", "train__parallel": "ddp", "run__launcher": "slurm", "run__processes": 8}
    config = params.parse(change(raw, data__source="synthetic", **changes))
    assert not validity.faults(config, machine.read())
    lines = list(estimate.report_lines(config, survey.survey(config)))
    assert len(lines) == 2
    assert "this machine has no GPU" in lines[1]


@pytest.mark.slow("two processes that import torch, and fail; make test measures with two")
def test_a_model_that_cannot_train_has_no_estimate(raw: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    """If one process fails, all are ended, and the error says that its message is above."""
    broken = on_cpu(raw, train__model="alexnet", train__crop=16, train__parallel="ddp", run__processes=2)
    with refuses(("estimate", "failed")):
        estimate.measure_times(params.parse(broken), 2)
    assert "Output size is too small" in capfd.readouterr().err


def test_photos_are_read_as_the_stages_read_them(
    raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample is resized to prepare.size, with prepare.grey and prepare.fit."""
    two_classes(tmp_path / "data/inbox")
    (tmp_path / "data/corrections.csv").write_text(corrections.EMPTY)
    config = params.parse(change(raw, data__source="inbox", prepare__grey="percentile", split__min_side=1))
    config = params.with_values(config, {"prepare.fit": "pad"})
    monkeypatch.chdir(tmp_path)
    real, asked = images.resize_to_square, set()

    def resize_to_square(path: Path, size: int, max_pixels: int, grey: Grey, fit: Fit) -> NDArray[np.uint8]:
        asked.add((size, grey, fit))
        return real(path, size, max_pixels, grey, fit=fit)

    monkeypatch.setattr(images, "resize_to_square", resize_to_square)
    assert estimate.reading_seconds(config, survey.survey(config)) > 0
    assert asked == {(config.prepare.size, "percentile", "pad")}


def test_a_variable_that_a_training_refuses_has_no_estimate(
    raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate is for processes with the environment of a training."""
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0")
    with refuses(("GLIBC_TUNABLES", "pair")):
        estimate.measure_times(params.parse(on_cpu(raw)), 2)


def test_images_are_counted_where_the_params_say(
    raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive before its download is not known; then its images count; the inbox and drawn images are known."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/corrections.csv").write_text(corrections.EMPTY)
    found = {
        source: survey.survey(params.parse(change(raw, data__source=source))) for source in ("archive", "synthetic")
    }
    assert (found["archive"].images, found["synthetic"].images) == (0, 600)
    for name, folder in (("archive", "data/images"), ("inbox", "data/inbox")):
        two_classes(tmp_path / folder)
        one = survey.survey(params.parse(change(raw, data__source=name)))
        assert (one.images, one.classes, one.where) == (20, 2, folder)


def test_videos_and_sidecars_are_no_images(tmp_path: Path) -> None:
    """What a phone writes beside a photo is not counted, and is not decoded for the estimate; an image may have any
    name.
    """
    two_classes(tmp_path)
    first = min((tmp_path / "cat").iterdir())
    first.unlink()
    (tmp_path / "cat/photo").write_bytes(b"\0\0\0\x14ftypheic\0\0\0\0mif1")
    (tmp_path / "cat/photo.MOV").write_bytes(b"\0\0\0\x14ftypqt  \0\0\0\0qt  ")
    (tmp_path / "dog/photo.AAE").write_bytes(b"bplist00")
    found = survey.survey_folder(tmp_path)
    assert found.images == 20
    assert tmp_path / "cat/photo" in found.files
    assert not {tmp_path / "cat/photo.MOV", tmp_path / "dog/photo.AAE"} & {*found.files}


def test_a_list_of_another_source_is_not_counted(
    raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a run with `data.source: folder` paths.images has a list. Another source has nothing there yet."""
    monkeypatch.chdir(tmp_path)
    two_classes(tmp_path / "photos")
    (tmp_path / "data/images").mkdir(parents=True)
    originals.write_manifest(tmp_path / "photos", tmp_path / "data/images", workers=1)
    assert survey.survey(params.parse(change(raw, data__source="archive"))).images == 0


def test_a_class_folder_may_be_named_as_a_file_of_dvc(tmp_path: Path) -> None:
    """An inbox is empty if it holds only files that `dvc add` wrote; a folder is none of them."""
    (tmp_path / "cat.dvc").write_text("outs: []\n")
    assert survey.is_empty(tmp_path)
    (tmp_path / "dog.dvc").mkdir()
    assert not survey.is_empty(tmp_path)


def test_a_given_split_is_counted_as_it_is(tmp_path: Path) -> None:
    """Folders train, val and test keep their images; class folders are split as split.fractions says; so is train,
    if val is missing.
    """
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
