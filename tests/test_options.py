"""The options of training, each in trainings that are really done: what it says is what arrives in the weights."""

import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.base import elementary, files
from pipeline.checks import machine
from pipeline.config import params
from pipeline.config.params import Residency, Run
from pipeline.dataset import packed
from pipeline.dataset.normalization import IMAGENET
from pipeline.learning import inference, temperature
from pipeline.learning.precision import allow_tf32
from pipeline.learning.world import World
from pipeline.loader import sampler, storage
from pipeline.loader.batches import train_batches
from pipeline.loader.sampler import Share
from pipeline.loader.storage import Dataset
from pipeline.models import exported, network
from pipeline.stages import weights
from tests.helpers import starts
from tests.helpers.trainings import ALONE, outputs, small_world

MIXED = {"color_jitter": 0.3, "erasing": 0.5, "mixup": 0.4, "cutmix": 1.0}
OWN_WEIGHTS = {"freeze_backbone": True, "lr": 0.01}

# Every training that the tests below look at, as changes of train.* (two epochs of 36 images in batches of 8).
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"lr": 0.02},
    "averaged": {"lr": 0.02, "ema_decay": 0.5, "export": "ema"},
    "frozen_norm": {"freeze_norm": True, "lr": 0.01, "weights": "data/pretrained/mine.pth"},
    "calibrated": {"lr": 0.02, "temperature": "fitted"},
    "from_pth": {**OWN_WEIGHTS, "weights": "data/pretrained/mine.pth"},
    "from_safetensors": {**OWN_WEIGHTS, "weights": "data/pretrained/mine.safetensors"},
    "two_epochs": {"schedule": "constant", "lr": 0.02},
    "four_epochs": {"schedule": "constant", "lr": 0.02, "epochs": 4},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every training of RUNS, finished, in a folder of its own: one after another in one process, to save time."""
    top = tmp_path_factory.mktemp("options")
    folders = {name: prepare(top / name, changes) for name, changes in RUNS.items()}
    done = starts.run([sys.executable, "-m", "tests.in_turn", *folders.values()])
    assert done.returncode == 0, done.stderr
    return folders


def prepare(folder: Path, changes: dict[str, Any]) -> Path:
    """A folder in which all is ready for a training with these changes of train.*, weights of a file included."""
    lines = {f"train__{key}": value for key, value in changes.items()}
    small_world(folder, run__log_steps=1, run__save_every_epochs=2, run__epoch_checkpoint_seconds=0, **lines)
    if "weights" in changes:
        source, state = folder / changes["weights"], another_model().state_dict()
        source.parent.mkdir()
        save = torch.save if source.suffix == ".pth" else safetensors.torch.save_file
        save(state, source)
        with chdir(folder):
            weights.run(params.load())
    return folder


def another_model() -> nn.Module:
    """A ShuffleNet for five classes, with weights that no training here begins with."""
    return network.build("shufflenet_v2_x0_5", 5, seed=7)


def weights_of(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / "models/model.safetensors")


def history(folder: Path, column: str) -> list[float]:
    return [float(row[column]) for row in files.read_csv(folder / "metrics/history.csv")]


def same_backbone(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one if not name.startswith("fc."))


def validated(folder: Path) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Logits of the exported model for the validation images, and their labels."""
    data = packed.load(folder / "data/packed", folder / "data/split.csv")
    rows = data.rows("val")
    image_store, _ = storage.open_images(data, Run(), ALONE.device)
    model = exported.load(folder / "models")
    logits = inference.predict_logits(model, image_store, data.sizes, rows, batch_size=64, world=ALONE)
    return logits, data.labels[rows]


def exported_loss(folder: Path) -> float:
    """The mean loss of the exported model on the validation images."""
    logits, labels = validated(folder)
    return float(-elementary.log_softmax(logits)[range(len(labels)), labels].mean())


def test_the_average_is_validated_and_exported_and_trains_nothing(runs: dict[str, Path]) -> None:
    """export: ema validates and writes the average, while training goes on as if there were none."""
    plain, averaged = runs["plain"], runs["averaged"]
    assert history(averaged, "train_loss") == history(plain, "train_loss")
    assert history(averaged, "val_loss") != history(plain, "val_loss")
    assert not torch.equal(weights_of(averaged)["fc.weight"], weights_of(plain)["fc.weight"])
    assert exported_loss(averaged) == pytest.approx(history(averaged, "val_loss")[-1], rel=1e-6)


def test_whoever_judges_computes_in_fp32(runs: dict[str, Path]) -> None:
    """On a GPU torch's default is TF32 for convolutions; a training in this process may have asked for more."""
    allow_tf32(True)
    validated(runs["plain"])
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32


def test_frozen_statistics_stay_while_the_weights_are_trained(runs: dict[str, Path]) -> None:
    """BatchNorm keeps the statistics of the file, and its weights do not stay."""
    first, last = network.export_state(another_model()), weights_of(runs["frozen_norm"])
    statistics = [name for name in first if name.endswith(("running_mean", "running_var"))]
    assert statistics
    assert all(torch.equal(first[name], last[name]) for name in statistics)
    assert not any(torch.equal(first[name], last[name]) for name in ("conv1.0.weight", "conv1.1.weight"))


def test_a_temperature_changes_the_head_by_one_factor(runs: dict[str, Path]) -> None:
    """It is the one that fits the validation images; the backbone stays, and the history is that of the training."""
    plain, calibrated = weights_of(runs["plain"]), weights_of(runs["calibrated"])
    factor = temperature.factor(*validated(runs["plain"]))
    assert factor != 1
    assert same_backbone(plain, calibrated)
    for name in ("fc.weight", "fc.bias"):
        assert torch.equal(plain[name] * factor, calibrated[name])
    assert history(runs["plain"], "val_loss") == history(runs["calibrated"], "val_loss")


def test_training_starts_from_the_weights_of_a_file(runs: dict[str, Path]) -> None:
    """Its head, for five classes, is replaced. The frozen backbone stays as it was, bit for bit."""
    last = weights_of(runs["from_pth"])
    assert same_backbone(last, network.export_state(another_model()))
    assert last["fc.weight"].shape == (3, 1024)
    assert outputs(runs["from_safetensors"]) == outputs(runs["from_pth"])


def test_every_world_size_sees_the_same_batches(tmp_path: Path) -> None:
    """Jittered, erased and mixed images and their targets, merged over 1 to 4 processes: byte for byte the same,
    wherever the packed images are kept. Those at the full side are those of a training that has this side from the
    beginning, also if it begins there."""
    folder = prepare(tmp_path, {**MIXED, "batch_size": 12, "epochs": 3, "crop_from": 16})
    settings = params.load(folder / "params.yaml").train
    data = packed.load(folder / "data/packed", folder / "data/split.csv")
    memories: tuple[Residency, ...] = ("disk", "host", "device")
    datasets = [Dataset(data, storage.open_images(data, Run(residency=memory), ALONE.device)[0], IMAGENET)
                for memory in memories]  # fmt: skip
    whole = list(train_batches(datasets[0], settings, Share(range(1), 1), 0))
    assert len(whole) == sampler.steps(3, 36, 12) == 9
    assert any(batch.targets.ndim == 2 for batch in whole)
    assert [batch.images.shape for batch in whole] == [(12, 3, 16, 16)] * 3 + [(12, 3, 32, 32)] * 6
    plain = settings.model_copy(update={"crop_from": 0})
    for one, same in zip(whole[3:], train_batches(datasets[0], plain, Share(range(1), 1), 3), strict=True):
        assert torch.equal(one.images, same.images)
        assert torch.equal(one.targets, same.targets)
    for number, (size, total) in enumerate(((2, 2), (3, 3), (4, 4), (3, 6), (4, 6)), 1):  # processes, microbatches
        shares = [Share(World(rank, 0, size, ALONE.device).share(total), total) for rank in range(size)]
        ranks = [train_batches(datasets[number % 3], settings, share, 0) for share in shares]
        for one, *parts in zip(whole, *ranks, strict=True):
            assert {part.step for part in parts} == {one.step}
            assert torch.equal(one.images, torch.cat([part.images for part in parts])), (size, total)
            assert torch.equal(one.targets, torch.cat([part.targets for part in parts])), (size, total)


def test_the_weights_of_every_second_epoch_are_kept(runs: dict[str, Path]) -> None:
    """save_every_epochs: 2 leaves two files after four epochs: what two epochs export, and the model."""
    paths = sorted(runs["four_epochs"].glob("runs/*/*.safetensors"))
    assert [path.name for path in paths] == ["epoch-0002.safetensors", "epoch-0004.safetensors"]
    exported = [runs[name] / "models/model.safetensors" for name in ("two_epochs", "four_epochs")]
    assert [files.sha256(path) for path in paths] == [files.sha256(path) for path in exported]


@pytest.mark.nightly("torch.compile takes minutes on a CPU")
def test_a_compiled_model_trains_to_the_same_bytes_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time compiled anew."""
    if not machine.read().compiler:
        pytest.skip("torch.compile needs a C++ compiler: none found")
    # Few kinds of kernels, and one shape: there are 12 images to validate.
    changes = {"compile": True, "model": "squeezenet1_1", "lr": 0.001, "epochs": 1, "batch_size": 12}
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # one a run, for both run at once
    folders, running = [prepare(tmp_path / name, changes) for name in ("once", "again")], []
    for folder in folders:
        environ = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
        running.append(subprocess.Popen([sys.executable, "-m", "pipeline", "train"], cwd=folder, env=environ))
    assert [run.wait() for run in running] == [0, 0]
    assert outputs(folders[0]) == outputs(folders[1])
