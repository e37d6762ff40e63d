"""A resumed training has the bytes of an uninterrupted one, for every kind of state."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.base import files
from pipeline.learning.schedule import best_epoch, should_stop
from tests.helpers.trainings import launch, outputs, small_world, stop_in_epoch

FURTHER = pytest.mark.nightly("the same for further kinds of state; make test-ci has one of them")


@pytest.mark.slow("further kinds of state; make test interrupts AdamW with an average (test_interruption)")
@pytest.mark.parametrize(
    ("processes", "lines"),
    [
        (1, {"train__optimizer": "adamw", "train__lr": 0.001, "train__ema_decay": 0.9, "train__export": "ema",
             "train__model": "mobilenet_v3_small", "train__gradient_checkpointing": True, "train__epochs": 8}),
        pytest.param(
            2, {"train__precision": "bf16", "run__launcher": "spawn", "train__accumulation_steps": 2,
                "train__mixup": 0.2, "train__model": "mobilenet_v3_small", "train__epochs": 6},
            marks=FURTHER,
        ),
        # A stop in the middle of the epochs at the smaller side, or after it.
        pytest.param(
            2, {"train__crop_from": 16, "train__mixup": 0.2, "train__cutmix": 1.0,
                "train__erasing": 0.5, "train__epochs": 12},
            marks=FURTHER,
        ),
        pytest.param(
            2, {"train__precision": "fp16", "train__model": "mobilenet_v3_small", "train__epochs": 4,
                "train__clip_norm": 1.0, "train__export": "best"},
            marks=FURTHER,
        ),
        # A model that is large enough for several buckets of gradients.
        pytest.param(
            3, {"train__model": "resnet18", "train__epochs": 4, "train__batch_size": 12, "train__optimizer": "adam",
                "train__lr": 0.001},
            marks=FURTHER,
        ),
    ],
    ids=str,
)  # fmt: skip
def test_resume_is_exact_in_the_middle_of_an_epoch(tmp_path: Path, processes: int, lines: dict[str, Any]) -> None:
    """On 1 to 3 processes, a stop and a resume change no byte, for every kind of state."""
    lines = {
        "train__parallel": "ddp", "run__processes": processes, "train__epochs": 24, "run__log_steps": 1,
        "train__label_smoothing": 0.0, **lines,
    }  # fmt: skip
    straight = small_world(tmp_path / "straight", **lines)
    launch(straight)
    folder = small_world(tmp_path / "cut", **lines)
    stop_in_epoch(folder, 2)
    assert "going on from step" in launch(folder).stderr
    assert outputs(folder) == outputs(straight)


@pytest.mark.nightly("four trainings of two processes; make test has the rule of stopping, and a resume")
def test_early_stopping_is_decided_by_the_history_also_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped and resumed run ends after the same epoch, with the same bytes; a start at its end trains nothing."""
    lines: dict[str, Any] = {
        "train__parallel": "ddp", "run__processes": 2, "train__freeze_backbone": True, "train__lr": 1e-6,
        "train__epochs": 200, "train__patience": 20, "train__export": "best", "run__log_steps": 1,
    }  # fmt: skip
    straight = small_world(tmp_path / "straight", **lines)
    launch(straight)
    table = files.read_csv(straight / "metrics/history.csv")
    history = [{name: float(row[name]) for name in ("val_accuracy", "val_loss")} for row in table]
    assert [should_stop(history[: k + 1], 20) for k in range(len(history))] == [False] * (len(history) - 1) + [True]
    figures = json.loads((straight / "metrics/train.json").read_text())
    assert figures["stopped_early"] is True
    assert figures["exported_epoch"] == best_epoch(history)
    folder = small_world(tmp_path / "cut", **lines)
    monkeypatch.setenv("DVC_STAGE", "train")  # nothing records the model, so the checkpoint stays
    stop_in_epoch(folder)
    second = launch(folder)
    assert "going on from step" in second.stderr
    assert outputs(folder) == outputs(straight)
    end = f"train: ended after epoch {len(history)} of 200 by train.patience: 20: "
    assert end in second.stderr
    shutil.rmtree(folder / "models")
    again = launch(folder)
    assert end in again.stderr
    assert "validation loss" not in again.stderr
    assert outputs(folder) == outputs(straight)


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
