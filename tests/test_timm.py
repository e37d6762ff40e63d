"""train.model: timm/<name> keeps the promises: the same bytes again, after a resume, on any number of processes."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from pipeline.base import files
from pipeline.commands import doctor
from pipeline.config import model_names, params
from pipeline.config.params import Run, Train
from pipeline.data import packed
from pipeline.evaluation import inference
from pipeline.loader import storage
from pipeline.models import exported, network, pretrained, timm_models
from tests.conftest import on_cpu, read_params
from tests.helpers.trainings import ALONE, launch, messages, outputs, rank_processes, small_world, start, wait_for_epoch

FURTHER = pytest.mark.nightly("the same for larger models; make test-ci has the smallest one")
MODELS = ("timm/resnet18", "timm/mobilenetv3_small_050", "timm/vit_tiny_patch16_224")


def settings(**changes: Any) -> Train:
    return params.parse(on_cpu(read_params(), **{f"train__{key}": value for key, value in changes.items()})).train


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": "timm/resnet81"}, [("train.model", "unknown")]),
        ({"model": "timm/hf-hub:timm/resnet18.a1_in1k"}, [("train.model", "unknown")]),
        ({"model": "timm/../resnet18"}, [("train.model", "unknown")]),
        ({"model": MODELS[2], "crop": 224}, [("train.eval_crop", "pair")]),
        ({"model": "timm/inception_v3"}, [("train.crop", "pair")]),
        ({"model": "timm/deit_tiny_distilled_patch16_224"}, [("train.model", "value")]),
        ({"model": "timm/qwen3_vit_306m_enc"}, [("train.model", "value")]),
        ({"model": MODELS[0]}, []),
        ({"model": MODELS[1]}, []),
        ({"model": MODELS[2], "crop": 224, "eval_crop": 224}, []),
        ({"model": "resnet18"}, []),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_before_any_work(
    changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """An unknown name, a side that the model does not take, and a model with two heads. So says the doctor."""
    faults = timm_models.faults(settings(**changes))
    assert [(fault.key, fault.kind) for fault in faults] == expected
    lines = {f"train__{key}": value for key, value in changes.items()}
    findings = list(doctor.timm(params.parse(on_cpu(read_params(), **lines))))
    assert [bool(finding.fault) for finding in findings] == [bool(expected)] * ("timm/" in changes["model"])


@pytest.mark.parametrize("model", MODELS)
def test_own_weights_are_loaded_except_a_head_of_other_classes(model: str, tmp_path: Path) -> None:
    """The backbone is the file's. Images are normalized as timm's weights of this model expect them."""
    classes = ("a", "b", "c")
    source, target = network.build(model, 5, seed=1), network.build(model, 3, seed=0)
    head: Any = network.head(target)
    safetensors.torch.save_file(source.state_dict(), tmp_path / "own.safetensors")
    pretrained.convert(tmp_path / "own.safetensors", tmp_path / model_names.weights_file(model))
    before = head.weight.clone()
    note = pretrained.load_into(target, tmp_path / model_names.weights_file(model), head, classes)
    assert "it starts untrained" in note
    assert torch.equal(before, head.weight)
    first = next(iter(target.state_dict()))
    assert torch.equal(target.state_dict()[first], source.state_dict()[first])
    assert network.normalization(model).mean == ((0.5, 0.5, 0.5) if model == MODELS[2] else (0.485, 0.456, 0.406))


@pytest.mark.slow("three trainings of a model; make test stops and resumes models of torchvision")
@pytest.mark.parametrize(
    ("model", "side"),
    [
        pytest.param(MODELS[0], 32, marks=FURTHER), (MODELS[1], 32), pytest.param(MODELS[2], 224, marks=FURTHER),
    ],
)  # fmt: skip
def test_a_resumed_run_has_the_bytes_of_a_straight_one(tmp_path: Path, model: str, side: int) -> None:
    """Two runs of one model write the same bytes, though one was stopped. What was exported predicts as validation."""
    lines: dict[str, Any] = {
        "train__model": model, "train__crop": side, "train__eval_crop": side, "train__eval_resize": side + 4,
        "train__epochs": 2 if side == 224 else 4, "run__log_steps": 1, "train__parallel": "ddp", "run__processes": 2,
    }  # fmt: skip
    straight, folder = small_world(tmp_path / "straight", **lines), small_world(tmp_path / "cut", **lines)
    launch(straight)
    launcher = start(folder)
    wait_for_epoch(launcher, folder)
    rank_processes(launcher)[1].send_signal(signal.SIGTERM)
    assert launcher.wait(600) == 75, messages(folder)
    assert "going on from step" in launch(folder).stderr
    assert outputs(folder) == outputs(straight)
    trained_model, history = exported.load(folder / "models"), files.read_csv(folder / "metrics/history.csv")
    data = packed.load(folder / "data/packed", folder / "data/split.csv")
    images, _ = storage.open_images(data, Run(residency="disk"), ALONE.device)
    rows = data.rows("val")
    logits = inference.predict_logits(trained_model, images, data.sizes, rows, batch_size=64, world=ALONE)
    log_probs = inference.log_probabilities(logits)
    assert -log_probs[np.arange(len(rows)), data.labels[rows]].mean() == pytest.approx(float(history[-1]["val_loss"]))
    assert (log_probs.argmax(1) == data.labels[rows]).mean() == float(history[-1]["val_accuracy"])


@pytest.mark.nightly("two trainings; make test-ci moves a model of torchvision to other numbers of processes")
def test_elastic_gives_the_same_bytes_for_any_number_of_processes(tmp_path: Path) -> None:
    """With gradient checkpointing and a moving average: the weights of one process are those of three."""
    lines: dict[str, Any] = {
        "train__model": MODELS[1], "train__parallel": "elastic", "train__shards": 4, "train__ema_decay": 0.9,
        "train__export": "ema", "train__gradient_checkpointing": True,
    }  # fmt: skip
    folders = [small_world(tmp_path / str(count), **lines, run__processes=count) for count in (1, 3)]
    for folder in folders:
        launch(folder)
    one, three = map(outputs, folders)
    assert one == three
