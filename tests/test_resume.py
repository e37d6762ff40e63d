"""A training × a disturbance: its bytes are those of the same training without it, for every kind of state."""

import json
import re
import shutil
import signal
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.base import files
from pipeline.learning.schedule import best_epoch, should_stop
from tests.conftest import set_params
from tests.helpers import starts
from tests.helpers.trainings import launch, messages, outputs, small_world, start, stop_in_epoch, wait_for_epoch

pytestmark = pytest.mark.slow("real starts, stops and moves; make test has the battered run of test_pipeline.py")

SMALL = {"train__model": "mobilenet_v3_small", "run__log_steps": 1}  # its BatchNorm works with two images
DDP = {"train__parallel": "ddp", "run__processes": 2, "train__label_smoothing": 0.0, "run__log_steps": 1}
TRAININGS: dict[str, dict[str, Any]] = {
    "an average, checkpointing": {
        **SMALL, "train__optimizer": "adamw", "train__lr": 0.001, "train__ema_decay": 0.9, "train__export": "ema",
        "train__gradient_checkpointing": True, "train__epochs": 4,
    },
    "bf16, accumulated, by spawn": {
        **DDP, **SMALL, "train__precision": "bf16", "run__launcher": "spawn", "train__accumulation_steps": 2,
        "train__mixup": 0.2, "train__epochs": 6,
    },
    "growing crops, mixed": {  # a stop in the middle of the epochs at the smaller side, or after it
        **DDP, "train__crop_from": 16, "train__mixup": 0.2, "train__cutmix": 1.0, "train__erasing": 0.5,
        "train__epochs": 12,
    },
    "fp16, clipped, best": {
        **DDP, **SMALL, "train__precision": "fp16", "train__clip_norm": 1.0, "train__export": "best",
        "train__epochs": 4,
    },
    "several buckets of gradients": {
        **DDP, "train__model": "resnet18", "train__optimizer": "adam", "train__lr": 0.001, "train__batch_size": 12,
        "run__processes": 3, "train__epochs": 4,
    },
    "elastic": {**SMALL, "train__parallel": "elastic", "train__shards": 4, "train__mixup": 0.2, "train__epochs": 6},
    "best of adamw": {"train__export": "best", "train__optimizer": "adamw", "train__hash_every_epochs": 1},
    "early stop": {
        **DDP, "train__freeze_backbone": True, "train__lr": 1e-6, "train__epochs": 200, "train__patience": 20,
        "train__export": "best",
    },
}  # fmt: skip


def stopped(folder: Path) -> None:
    """Its last process is asked to stop in the second epoch."""
    stop_in_epoch(folder, 2)
    assert "going on from step" in launch(folder).stderr


def moved(folder: Path) -> None:
    """It is stopped on four and on two processes, and ends on three, in one folder of a run."""
    for count, epoch in ((4, 1), (2, 3)):
        set_params(folder, run__processes=count)
        stop_in_epoch(folder, epoch)
    set_params(folder, run__processes=3)
    assert "going on from step" in launch(folder).stderr
    assert len(list((folder / "runs").iterdir())) == 1


def lost(folder: Path) -> None:
    """Its machine is lost after a stop: the copy has the last step. Another machine refuses a damaged copy."""
    copies = folder.parent / "copies"
    set_params(folder, run__checkpoint_copy=str(copies))
    first = shutil.copytree(folder, folder.parent / "first", symlinks=True)
    launcher = start(first)
    wait_for_epoch(launcher, first, 1)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(600) == 75, messages(first)
    (step,) = re.findall(r"saved at (step \d+) of", messages(first))
    (saved,), (newest,) = first.glob("runs/*/checkpoint.pt"), copies.glob("*/checkpoint.pt")
    content = newest.read_bytes()
    assert content == saved.read_bytes()
    newest.write_bytes(content[:-1])
    assert "is damaged" in launch(folder, check=False).stderr
    shutil.rmtree(folder / "runs")
    newest.write_bytes(content)
    assert f"going on from {step}" in launch(folder).stderr
    assert not newest.exists()


def without_serving_code(folder: Path) -> None:
    """Launcher, display, checkpoints, provenance, checks and messages do nothing."""
    done = starts.run([sys.executable, "-m", "tests.ranks.without_serving"], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert not (folder / "runs").exists()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the folder of an undisturbed training, which is made once."""

    @cache
    def run(training: str) -> Path:
        folder = small_world(tmp_path_factory.mktemp("straight") / "run", **TRAININGS[training])
        launch(folder)
        return folder

    return run


FURTHER = pytest.mark.nightly("further pairs of a training and a disturbance; make test-ci has one of each kind")
DISTURBED = [
    ("an average, checkpointing", stopped),
    ("an average, checkpointing", lost),
    ("elastic", without_serving_code),
    ("best of adamw", without_serving_code),
    pytest.param("elastic", moved, marks=FURTHER),
    pytest.param("bf16, accumulated, by spawn", stopped, marks=FURTHER),
    pytest.param("growing crops, mixed", stopped, marks=FURTHER),
    pytest.param("fp16, clipped, best", stopped, marks=FURTHER),
    pytest.param("several buckets of gradients", stopped, marks=FURTHER),
]


@pytest.mark.parametrize(("training", "disturb"), DISTURBED)
def test_a_disturbance_changes_no_byte(
    straight: Callable[[str], Path], tmp_path: Path, training: str, disturb: Callable[[Path], None]
) -> None:
    folder = small_world(tmp_path / "disturbed", **TRAININGS[training])
    disturb(folder)
    assert outputs(folder) == outputs(straight(training))


@pytest.mark.nightly("three trainings of two processes; make test has the rule of stopping, and make test-ci a resume")
def test_early_stopping_is_decided_by_the_history_also_after_a_resume(
    straight: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped and resumed run ends after the same epoch, with the same bytes; a start at its end trains nothing."""
    table = files.read_csv(straight("early stop") / "metrics/history.csv")
    history = [{name: float(row[name]) for name in ("val_accuracy", "val_loss")} for row in table]
    assert [should_stop(history[: k + 1], 20) for k in range(len(history))] == [False] * (len(history) - 1) + [True]
    figures = json.loads((straight("early stop") / "metrics/train.json").read_text())
    assert (figures["stopped_early"], figures["exported_epoch"]) == (True, best_epoch(history))
    monkeypatch.setenv("DVC_STAGE", "train")  # nothing records the model, so the checkpoint stays
    folder = small_world(tmp_path / "cut", **TRAININGS["early stop"])
    stopped(folder)
    assert outputs(folder) == outputs(straight("early stop"))
    end = f"train: ended after epoch {len(history)} of 200 by train.patience: 20: "
    shutil.rmtree(folder / "models")
    again = launch(folder)
    assert end in again.stderr
    assert "validation loss" not in again.stderr
    assert outputs(folder) == outputs(straight("early stop"))


def test_a_finished_run_that_dvc_did_not_record_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between its last step and DVC's record, a run goes on from its end. Once recorded, a start trains anew."""
    folder = small_world(tmp_path, run__log_steps=2)
    monkeypatch.setenv("DVC_STAGE", "train")  # as DVC starts it
    launch(folder)
    first = outputs(folder)
    shutil.rmtree(folder / "models")  # DVC removes outputs that it has no record of
    again = launch(folder)
    assert "going on from step 9" in again.stderr
    assert "epoch 1/2" not in again.stderr
    assert outputs(folder) == first
    outs = [{"path": "models/model.safetensors", "md5": files.md5(folder / "models/model.safetensors")}]
    with (folder / "dvc.lock").open("w") as lock:
        YAML().dump({"schema": "2.0", "stages": {"train": {"cmd": "", "outs": outs}}}, lock)
    third = launch(folder)
    assert "going on" not in third.stderr
    assert "epoch 1/2" in third.stderr
    assert outputs(folder) == first
    assert not list(folder.glob("runs/*/*checkpoint.pt"))
