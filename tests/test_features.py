"""Pretrained weights of the lock; the features of each image once; a head that is solved from them."""

import shutil
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from pipeline.base import elementary, files
from pipeline.config.model_names import PACKAGED
from pipeline.dataset import feature_file, packed
from pipeline.evaluation import figures
from pipeline.evaluation.figures import TrainFigures
from pipeline.learning import inference
from pipeline.loader import storage
from pipeline.models import exported, network, pretrained
from pipeline.models.exported import with_normalization
from tests.conftest import set_params
from tests.helpers import starts
from tests.helpers.refusals import refuses
from tests.helpers.trainings import ALONE, ends, fork_ranks, messages, small_world, wait_for

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
    """Both hashes are named. So is a package that is not installed."""
    entry = PACKAGED[LITE0]
    monkeypatch.setitem(PACKAGED, LITE0, replace(entry, sha256="0" * 64))
    with refuses((str(metadata.distribution(entry.package).locate_file(entry.file)), "differs")) as error:
        pretrained.packaged_weights(LITE0)
    (fault,) = error.value.faults
    assert entry.sha256 in fault.value
    assert fault.allowed == "0" * 64
    monkeypatch.setitem(PACKAGED, LITE0, replace(entry, package="no-such-package"))
    with refuses(("no-such-package", "missing")):
        pretrained.packaged_weights(LITE0)


def run(folder: Path, *stages: str) -> None:
    """The stages in forked processes, without their launchers."""
    for stage in stages:
        if stage == "weights":
            starts.run([sys.executable, "-m", "pipeline", stage], cwd=folder, check=True)
        else:
            assert set(ends(fork_ranks(folder, stage))) == {0}, messages(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features and head of one process, without an interruption."""
    folder = small_world(tmp_path_factory.mktemp("solved"), 200, **SOLVED)
    run(folder, "weights", "features", "train")
    return folder


@pytest.mark.slow("the features of the whole run above, and of a killed one; make test solves the equations")
def test_features_of_an_earlier_start_are_not_computed_again(whole: Path, tmp_path: Path) -> None:
    """Of a killed one, with two processes: the bits of one. Of a finished one, if an image has other pixels now."""
    folder = small_world(tmp_path / "killed", 200, **SOLVED | {"run__processes": 2})
    run(folder, "weights")
    processes, sign = fork_ranks(folder, "features"), ".dvc/tmp/features/*/*.npy"
    wait_for(lambda: [*folder.glob(sign)] or processes[0].exitcode is not None, f"no {sign}")
    for process in processes:
        process.kill()
    ends(processes)
    assert not (folder / "data/features").exists()
    (part,) = folder.glob(sign)
    expected = np.load(whole / "data/features/features.npy")
    kept = feature_file.known(part.parent)
    assert 0 < len(kept) < len(expected)
    assert np.array_equal([*kept.values()], expected[: len(kept)])
    expected[: len(kept)] = 0
    feature_file.keep(part.parent, [*kept], expected[: len(kept)])
    part.unlink()
    run(folder, "features")
    assert np.array_equal(np.load(folder / "data/features/features.npy"), expected)

    other = packed.load(folder / "data/packed", folder / "data/split.csv").images[::-1]
    files.remove(folder / "data/packed")  # it may be a link
    (folder / "data/packed").mkdir()
    packed.write(folder / "data/packed", [np.roll(other[0], 1), *other[1:]], len(other), other.shape[1])
    run(folder, "features")
    after = np.load(folder / "data/features/features.npy")
    assert np.array_equal(after[1:], expected[:-1][::-1])
    assert not np.array_equal(after[0], expected[-1])
    assert after[0].any()


def test_a_damaged_file_of_features_is_refused(tmp_path: Path) -> None:
    """One byte of one number is enough."""
    images, values = [b"a" * 40, b"b" * 40], np.arange(40, dtype=np.float32).reshape(2, 20)
    path = feature_file.keep(tmp_path, images, values)
    known = feature_file.known(tmp_path)
    assert [*known] == images
    assert np.array_equal([*known.values()], values)
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with refuses((str(path), "damaged")):
        feature_file.known(tmp_path)


def validation(folder: Path) -> tuple[float, float]:
    """The loss and the accuracy of the exported model on the validation images."""
    model, data = exported.load(folder / "models"), packed.load(folder / "data/packed", folder / "data/split.csv")
    rows = data.rows("val")
    store = storage.ImageStore(torch.from_numpy(data.images.copy()), ALONE.device)
    logits = inference.predict_logits(model, store, data.sizes, rows, batch_size=8, world=ALONE)
    log_probs, labels = elementary.log_softmax(logits), data.labels[rows]
    return -log_probs[np.arange(len(rows)), labels].mean(), (log_probs.argmax(1) == labels).mean()


@pytest.mark.slow("the features of the whole run above; make test solves the equations")
def test_the_exported_network_is_the_solution(whole: Path) -> None:
    """From the pixels it gives the loss and the accuracy that the solution had on the features of validation images."""
    train = figures.read(whole / "metrics", TrainFigures)
    assert validation(whole) == pytest.approx((train.val_loss, train.val_accuracy), abs=1e-4)


@pytest.mark.slow("a training with timm after the whole run above; tests/test_options.py has weights of a file")
def test_a_training_of_all_layers_begins_with_the_solution(whole: Path, tmp_path: Path) -> None:
    """At a learning rate of almost nothing the head stays the solution; a usual one moves it."""
    solution = load_file(whole / "models/model.safetensors")
    for rate, differs in ((1e-9, False), (1e-3, True)):
        folder = tmp_path / str(rate)
        shutil.copytree(whole, folder, symlinks=True)
        lines = {"train__freeze_backbone": False, "train__freeze_norm": True, "train__lr": rate, "train__epochs": 1}
        set_params(folder, **lines, train__parallel="single")
        run(folder, "train")
        trained = load_file(folder / "models/model.safetensors")
        assert torch.equal(trained["bn1.running_mean"], solution["bn1.running_mean"])
        for name in ("classifier.weight", "conv_stem.weight"):
            assert torch.allclose(trained[name], solution[name], atol=1e-6) != differs
