"""Networks of whole numbers: the same features and logits, to the last bit, however and wherever they are computed."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from pipeline.config.model_names import EXACT_MODELS
from pipeline.evaluation import onnx_export
from pipeline.learning import ridge
from pipeline.models import exact, hub, network, pretrained, timm_models
from pipeline.models.description import Description, View
from pipeline.models.exported import ExportedModel, with_normalization
from tests.conftest import PROJECT, set_params
from tests.helpers.refusals import refuses
from tests.helpers.trainings import digests, outputs, small_world
from tests.test_features import SOLVED, run

LITE0 = "exact/tf_efficientnet_lite0"
SIDE = 224


def packaged() -> dict[str, Tensor]:
    """The tensors of timm's model, from the package."""
    path, names = pretrained.packaged_weights("timm/tf_efficientnet_lite0")
    values = torch.load(path, map_location="cpu", weights_only=True).values()
    return dict(zip(names, values, strict=True))


def made() -> ExportedModel:
    """The network with a head that is solved on the features of drawn numbers."""
    net = network.build(LITE0, 3, seed=0)
    random = np.random.default_rng(0)
    features = (random.integers(0, 4000, (60, 1280)) / exact.UNIT).astype(np.float32)
    head = ridge.solve(features, np.arange(60) % 3, np.ones(3), 0.5).on_grid()
    last = {"weight": torch.from_numpy(head.weight).float(), "bias": torch.from_numpy(head.bias).float()}
    whole = exact.quantize(LITE0, packaged())
    net.load_state_dict(whole | {f"classifier.{name}": value for name, value in last.items()})
    view = View(packed_size=256, resize=256, crop=SIDE)
    return ExportedModel(net.eval(), ("a", "b", "c"), view, network.normalization(LITE0))


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    return packaged()


@pytest.fixture(scope="module")
def model() -> ExportedModel:
    return made()


@pytest.fixture(scope="module")
def pixels(photos: Path) -> NDArray[np.float32]:
    """A few photos, [n, 3, SIDE, SIDE] from 0 to 255, of which some values are no whole numbers."""
    paths = sorted(photos.glob("*/*.jpg"))[::9]
    squares = [Image.open(path).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC) for path in paths]
    values = np.stack([np.asarray(square) for square in squares]).transpose(0, 3, 1, 2).astype(np.float32)
    return np.ascontiguousarray(np.clip(values + np.linspace(0, 0.9, SIDE, dtype=np.float32), 0, 255))


@torch.no_grad()
def logits(net: Any, pixels: Tensor, batch: int) -> Tensor:
    return torch.cat([net(part) for part in pixels.split(batch)])


def test_batches_layouts_threads_and_libraries_change_no_bit(
    model: ExportedModel, pixels: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Convolutions of oneDNN and of torch itself, which add in other orders, give equal logits."""
    net, images = with_normalization(model.net, model.normalization), torch.from_numpy(pixels)
    expected, threads = logits(net, images, 9), torch.get_num_threads()
    assert len(expected.unique()) == expected.numel()
    others = [logits(net, images, size) for size in (1, 4)]
    last, usual = ({"memory_format": layout} for layout in (torch.channels_last, torch.contiguous_format))
    others.append(logits(cast(Any, net).to(**last), cast(Any, images).to(**last), 4))
    cast(Any, net).to(**usual)
    try:
        torch.set_num_threads(3 - min(threads, 2))
        others.append(logits(net, images, 4))
    finally:
        torch.set_num_threads(threads)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    others.append(logits(net, images[:2], 2))
    assert all(torch.equal(other, expected[: len(other)]) for other in others)


def test_it_is_about_the_network_that_it_is_made_of(
    model: ExportedModel, tensors: dict[str, Tensor], pixels: NDArray[np.float32]
) -> None:
    """Its features point the same way as those of timm's model: with other photos the cosine is smaller."""
    timm = network.build("timm/tf_efficientnet_lite0", 1000, seed=0)
    timm.load_state_dict(tensors)
    timm = with_normalization(
        network.without_head(timm.eval(), ""), network.normalization("timm/tf_efficientnet_lite0")
    )
    whole = network.build(LITE0, 3, seed=0)
    whole.load_state_dict(model.net.state_dict())
    whole = with_normalization(network.without_head(whole, ""), model.normalization)
    first, second = (logits(net, torch.from_numpy(pixels), 9) for net in (timm, whole))
    cosines = nn.functional.normalize(first) @ nn.functional.normalize(second).T
    assert cosines.diagonal().min() > 0.995
    assert (cosines.argmax(1) == torch.arange(len(pixels))).all()
    assert (second * exact.UNIT == (second * exact.UNIT).round()).all()


def onnx_of(model: ExportedModel, name: str = LITE0) -> bytes:
    description = Description(name, model.classes, model.view, (0.5,) * 3, (1 / 510,) * 3, "last", 1)
    return onnx_export.content(model, description, "0" * 64)


def test_onnxruntime_gives_the_same_bits(model: ExportedModel, pixels: NDArray[np.float32]) -> None:
    """With and without its optimizations, on one thread and on two. The file has two bytes for each weight."""
    content = onnx_of(model)
    assert len(content) < 7.5e6
    expected = logits(with_normalization(model.net, model.normalization), torch.from_numpy(pixels), 9).numpy()
    levels = onnxruntime.GraphOptimizationLevel
    for level, threads in ((levels.ORT_DISABLE_ALL, 1), (levels.ORT_ENABLE_ALL, 1), (levels.ORT_ENABLE_ALL, 2)):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.intra_op_num_threads = level, threads
        session = onnxruntime.InferenceSession(content, options)
        assert np.array_equal(session.run(None, {"pixels": pixels[:5]})[0], expected[:5])


@pytest.mark.nightly("four larger networks, with drawn weights; make test has the one that has weights in a package")
@pytest.mark.parametrize("name", EXACT_MODELS[1:])
def test_larger_networks_are_exact_too(name: str, pixels: NDArray[np.float32]) -> None:
    """Their sums are those in float64, and onnxruntime gives the same logits. The weights are drawn."""
    torch.manual_seed(0)
    timm = timm_models.build(exact.timm_name(name), 1)
    for norm in (layer for layer in timm.modules() if isinstance(layer, nn.BatchNorm2d)):
        norm.weight.data.uniform_(0.5, 1.5)
        norm.bias.data.normal_(0, 0.3)
    with torch.no_grad():
        timm.train()(torch.randn(8, 3, 96, 96))
    net = network.build(name, 3, seed=0)
    net.load_state_dict(net.state_dict() | exact.quantize(name, timm.state_dict()))
    exact.check_device(net.eval(), 97, torch.device("cpu"))
    small = ExportedModel(net, ("a", "b", "c"), View(112, 112, 97), exact.NORMALIZATION)
    crops = pixels[:3, :, :97, :97]
    answers = onnxruntime.InferenceSession(onnx_of(small, name)).run(None, {"pixels": crops})[0]
    assert np.array_equal(answers, logits(with_normalization(net, exact.NORMALIZATION), torch.from_numpy(crops), 3))
    assert len(np.unique(answers)) == answers.size


@pytest.mark.parametrize("change", [torch.Tensor.clone, torch.ones_like, torch.zeros_like, lambda values: values * 1e6])
def test_no_sum_of_a_convolution_can_be_inexact(tensors: dict[str, Tensor], change: Any) -> None:
    """For the weights of the package, and for others: equal ones, none, large ones. The largest sums are near 2**24."""
    name, net = "blocks.6.0.conv_pwl.weight", exact.build(LITE0, 1)
    net.load_state_dict(exact.quantize(LITE0, tensors | {name: change(tensors[name])}), strict=False)
    highest, largest = exact.RELU_LEVELS, 0.0
    for layer in net.modules():
        if isinstance(layer, exact.Layer):
            sums = layer.weight.double().abs().sum((1, 2, 3)) * highest + layer.offset.double().abs()
            assert torch.equal(layer.offset, layer.offset.round())
            highest, largest = layer.high, max(largest, float(sums.max()))
    assert 0.99 * exact.LARGEST < largest < exact.LARGEST


def test_a_device_that_does_not_add_exactly_is_refused(model: ExportedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """As tensor cores would if they kept fewer bits of a sum. On a CPU nothing differs."""
    exact.check_device(model.net, 64, torch.device("cpu"))
    convolve = torch.nn.functional.conv2d

    def rounded(values: Tensor, *others: Any) -> Tensor:
        sums = convolve(values, *others)
        return sums if sums.dtype == torch.float64 else sums.bfloat16().float()

    monkeypatch.setattr(torch.nn.functional, "conv2d", rounded)
    with refuses(("train.model", "machine")):
        exact.check_device(model.net, 64, torch.device("cpu"))
    exact.check_device(nn.Conv2d(3, 3, 3), 64, torch.device("cpu"))


def test_a_head_on_the_grid_adds_in_any_order() -> None:
    """It is near the solution, float32 has its numbers, and the order of 1,280 features changes no bit of a logit."""
    random = np.random.default_rng(0)
    head = ridge.Head(random.normal(0, 0.3, (5, 1280)), random.normal(0, 3, 5))
    rounded = head.on_grid()
    assert np.abs(rounded.weight - head.weight).max() < 1e-5
    assert np.array_equal(rounded.weight, rounded.weight.astype(np.float32))
    features = (random.integers(0, 2**14, (40, 1280)) / exact.UNIT).astype(np.float32)
    order = random.permutation(1280)
    shuffled = ridge.Head(rounded.weight[:, order], rounded.bias).logits(features[:, order])
    assert np.array_equal(shuffled, rounded.logits(features))
    one_by_one = [sum(f * w for f, w in zip(features[0].tolist(), row, strict=True)) for row in rounded.weight.tolist()]
    assert np.array_equal(one_by_one + rounded.bias, rounded.logits(features)[0])


def test_config_json_names_a_library_that_timm_and_transformers_refuse(model: ExportedModel) -> None:
    """They do not have networks of whole numbers."""
    content = hub.config(Description(LITE0, model.classes, model.view, (0.5,) * 3, (1 / 510,) * 3, "last", 1))
    assert (content["architecture"], content["model_type"]) == (LITE0, "perennial")


def say() -> None:
    """Print the SHA-256 of the whole numbers, and of the logits for some pixels."""
    net = made().net
    images = (torch.arange(2 * 3 * 64 * 64) * 7919 % 511 - 255).reshape(2, 3, 64, 64).float()
    for values in (network.export_state(net), {"logits": logits(net, images, 2)}):
        print(hashlib.sha256(safetensors.torch.save(values)).hexdigest())


@pytest.mark.slow("starts torch as another kind of CPU; make test has other orders of the same sums")
def test_another_kind_of_cpu_gives_the_same_bits(capsys: pytest.CaptureFixture[str]) -> None:
    """Whole numbers and logits are those of this process, with other code of the libraries: that of SSE4.1."""
    environ = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    command = [sys.executable, "-c", "from tests.test_exact import say; say()"]
    done = subprocess.run(command, cwd=PROJECT, env=environ, capture_output=True, text=True, check=True)
    say()
    assert capsys.readouterr().out == done.stdout != ""


@pytest.mark.nightly("five processes with timm; make test compares the bits of the network")
def test_a_model_does_not_depend_on_batches_layouts_and_processes(tmp_path: Path) -> None:
    """One process with one image at a time, and two with four in another layout: equal features and weights."""
    one, two = (tmp_path / name for name in ("one", "two"))
    settings = SOLVED | {"train__model": LITE0}
    run(small_world(one, 60, **settings), "weights", "features", "train")
    shutil.copytree(one, two, symlinks=True, ignore=shutil.ignore_patterns("features", "runs", "models", "metrics"))
    set_params(two, evaluate__batch_size=4, train__memory_format="channels_last", run__processes=2)
    run(two, "features", "train")
    assert digests(one, "data/features") == digests(two, "data/features")
    assert outputs(one)["models/model.safetensors"] == outputs(two)["models/model.safetensors"]
    assert json.loads((one / "models/model.json").read_bytes())["model"] == LITE0
