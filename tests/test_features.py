"""Pretrained weights of the lock; the features of each image once; a head that is solved from them."""

import os
import shutil
import signal
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from pipeline.config.model_names import PACKAGED
from pipeline.dataset import packed
from pipeline.evaluation import figures
from pipeline.evaluation.figures import TrainFigures
from pipeline.learning import inference
from pipeline.loader import storage
from pipeline.models import exported, network, pretrained
from pipeline.models.exported import with_normalization
from tests.conftest import set_params
from tests.helpers.refusals import refuses
from tests.helpers.trainings import ALONE, digests, gone, messages, outputs, small_world, start, wait_for

LITE0 = "timm/tf_efficientnet_lite0"
DAISY = 985  # of ImageNet-1k
SOLVED: dict[str, Any] = {
    "train__model": LITE0, "train__weights": "imagenet", "train__freeze_backbone": True, "train__head": "solved",
    "train__temperature": "fitted",
    "train__parallel": "elastic", "evaluate__batch_size": 1, "run__processes": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the stage `weights` makes of the package."""
    path = tmp_path_factory.mktemp("weights") / "lite0.safetensors"
    source, names = pretrained.packaged_weights(LITE0)
    pretrained.convert(source, path, LITE0, names)
    return path


def test_the_weights_of_the_package_know_daisies(weights: Path, photos: Path) -> None:
    """All tensors fit timm's model, the head of 1,000 classes too; most photos of daisies are ImageNet's *daisy*."""
    net = network.build(LITE0, 1000, seed=1)
    pretrained.load_into(net, weights)
    model = with_normalization(net.eval(), network.normalization(LITE0))
    daisies = sorted((photos / "daisy").glob("*.jpg"))
    squares = [Image.open(path).convert("RGB").resize((224, 224), Image.Resampling.BICUBIC) for path in daisies]
    with torch.inference_mode():
        answers = model(
            torch.from_numpy(np.stack([np.asarray(square) for square in squares])).permute(0, 3, 1, 2).float()
        ).argmax(1)
    assert (answers == DAISY).sum() > len(daisies) / 2


def test_another_file_in_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both hashes are named; a package that is not installed is named, too."""
    entry = PACKAGED[LITE0]
    monkeypatch.setitem(PACKAGED, LITE0, vars_of(entry, sha256="0" * 64))
    with refuses((str(metadata.distribution(entry.package).locate_file(entry.file)), "differs")) as error:
        pretrained.packaged_weights(LITE0)
    (fault,) = error.value.faults
    assert entry.sha256 in fault.value
    assert fault.allowed == "0" * 64
    monkeypatch.setitem(PACKAGED, LITE0, vars_of(entry, package="no-such-package"))
    with refuses(("no-such-package", "missing")):
        pretrained.packaged_weights(LITE0)


def vars_of(entry: Any, **changes: str) -> Any:
    return type(entry)(**{**vars(entry), **changes})


def run(folder: Path, *stages: str) -> None:
    for stage in stages:
        assert start(folder, stage).wait(600) == 0, messages(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features and head of one process, without an interruption."""
    folder = small_world(tmp_path_factory.mktemp("solved"), 200, **SOLVED)
    run(folder, "weights", "features", "train")
    return folder


@pytest.mark.slow("a dozen starts of processes with timm; make test solves the equations")
@pytest.mark.parametrize(
    "processes", [2, *(pytest.param(k, marks=pytest.mark.nightly("as with two processes")) for k in (1, 3))]
)
def test_a_kill_and_other_processes_change_no_byte(processes: int, whole: Path, tmp_path: Path) -> None:
    """Killed after a part of the features, and again in the training; then run again. The finished part stays."""
    folder = small_world(tmp_path / "killed", 200, **SOLVED | {"run__processes": processes})
    run(folder, "weights")
    launcher = start(folder, "features")
    wait_for(lambda: list(folder.glob(".dvc/tmp/features/*/0.npy")) or launcher.poll() is not None, "no part")
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait(600)
    wait_for(lambda: gone(folder), "orphans")
    (part,) = folder.glob(".dvc/tmp/features/*/0.npy")
    before = part.stat().st_mtime_ns
    assert not (folder / "data/features").exists()
    launcher = start(folder, "features")
    wait_for(lambda: list(folder.glob(".dvc/tmp/features/*/1.npy")) or launcher.poll() is not None, "no second part")
    assert launcher.poll() is None
    assert part.stat().st_mtime_ns == before
    assert launcher.wait(600) == 0
    launcher = start(folder, "train")
    wait_for(lambda: list(folder.glob("runs/*/")) or launcher.poll() is not None, "no run")
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait(600)
    wait_for(lambda: gone(folder), "orphans")
    run(folder, "train")
    assert digests(folder, "data/features") == digests(whole, "data/features")
    assert outputs(folder) == outputs(whole)


@pytest.mark.slow("the features of the whole run above; make test solves the equations")
def test_the_exported_network_is_the_solution(whole: Path) -> None:
    """From the pixels it gives the loss and the accuracy that the solution had on the features of validation images."""
    model, data = exported.load(whole / "models"), packed.load(whole / "data/packed", whole / "data/split.csv")
    rows = data.rows("val")
    store = storage.ImageStore(torch.from_numpy(data.images.copy()), ALONE.device)
    logits = inference.predict_logits(model, store, data.sizes, rows, batch_size=8, world=ALONE)
    log_probs, labels = inference.log_probabilities(logits), data.labels[rows]
    train = figures.read(whole / "metrics", TrainFigures)
    assert (log_probs.argmax(1) == labels).mean() == train.val_accuracy
    assert -log_probs[np.arange(len(rows)), labels].mean() == pytest.approx(train.val_loss, abs=1e-4)


@pytest.mark.slow("a training with timm after the whole run above; tests/test_options.py has weights of a file")
def test_a_training_of_all_layers_begins_with_the_solution(whole: Path, tmp_path: Path) -> None:
    """At a learning rate of almost nothing the head stays the solution; the learning rate of the preset moves it."""
    solution = weights_of(whole)
    for rate, differs in ((1e-9, False), (1e-3, True)):
        folder = tmp_path / str(rate)
        shutil.copytree(whole, folder, symlinks=True)
        lines = {"train__freeze_backbone": False, "train__freeze_norm": True, "train__lr": rate, "train__epochs": 1}
        set_params(folder, **lines, train__parallel="single")
        run(folder, "train")
        trained = weights_of(folder)
        assert torch.equal(trained["bn1.running_mean"], solution["bn1.running_mean"])
        for name in ("classifier.weight", "conv_stem.weight"):
            assert torch.allclose(trained[name], solution[name], atol=1e-6) != differs


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "models/model.safetensors")
