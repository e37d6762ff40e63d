"""What training does to any of torchvision's models: find the head, group, freeze, compute again instead of keeping."""

import json
import re
import sys
import warnings
from copy import deepcopy
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from pipeline.checks import rules, validity
from pipeline.config import model_names
from pipeline.dataset.normalization import IMAGENET
from pipeline.models import network
from tests.conftest import PROJECT
from tests.helpers import starts
from tests.helpers.operators import operators_of_a_step, shape_of
from tests.helpers.refusals import refuses

OF_TIMM = ["timm/resnet18", "timm/mobilenetv3_small_050"]
WITHOUT_BLOCKS = ["alexnet", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn"]


def test_the_list_and_the_normalizations_are_torchvisions() -> None:
    """The names that need no torch; the mean and the deviation of the weights that torchvision fetches."""
    assert list(model_names.MODELS) == sorted(torchvision.models.list_models(module=torchvision.models))
    others = []
    for name in model_names.MODELS:
        wanted: Any = torchvision.models.get_model_weights(name).DEFAULT.transforms()
        found = network.normalization(name)
        assert (list(found.mean), list(found.std)) == (list(wanted.mean), list(wanted.std)), name
        others += [name] if found != IMAGENET else []
    assert others == ["efficientnet_v2_l"]


@pytest.mark.parametrize("name", validity.SMALLEST_SIDES)
def test_a_smaller_side_than_the_least_is_an_error_of_torch(name: str) -> None:
    """With the least side a model of this name gives logits."""
    side = validity.SMALLEST_SIDES[name]
    with torch.device("meta"):
        net = network.build(next(model for model in model_names.MODELS if model.startswith(name)), 2, seed=0).eval()
        assert net(torch.empty(2, 3, side, side)).shape == (2, 2)
        with pytest.raises(RuntimeError, match=r"too small|greater than actual input size"):
            net(torch.empty(2, 3, side - 1, side - 1))


MOVES = {
    "alias", "as_strided", "constant_pad_nd", "ne", "permute", "roll", "slice_backward", "split", "squeeze",
    "zeros_like",
}  # fmt: skip
TRACED = pytest.mark.nightly("a step of each of 80 models is traced; make test has the refusals of those it finds")
FAMILIES = {re.split(r"[\d_]", name)[0]: name for name in reversed(model_names.MODELS)}
OF_ALL = pytest.mark.nightly("builds 80 models several times; make test has one of each family")


@pytest.mark.parametrize(
    "names",
    [pytest.param([*FAMILIES.values()], id="families"), pytest.param(model_names.MODELS, marks=OF_ALL, id="all")],
)
def test_every_model_has_a_head_and_blocks(names: list[str]) -> None:
    """The parameters whose shape changes with the number of classes are exactly the head's.

    Gradient checkpointing finds the blocks, which hold most of the model, or refuses it by name.
    """
    for name in names:
        net, three = shape_of(name, 2), shape_of(name, 3)
        head = {id(parameter) for parameter in network.head(net).parameters()}
        of_classes = {id(p) for p, q in zip(net.parameters(), three.parameters(), strict=True) if p.shape != q.shape}
        assert of_classes == head != set(), name
        if name in WITHOUT_BLOCKS:
            with refuses(("train.gradient_checkpointing", "pair")):
                network.checkpoint_blocks(net, name)
            continue
        network.checkpoint_blocks(net, name)
        blocks = [module for module in net.modules() if "forward" in vars(module)]
        assert len(blocks) >= 4, name
        in_blocks = [id(parameter) for block in blocks for parameter in block.parameters()]
        assert len(in_blocks) == len(set(in_blocks)) > 0.5 * len(list(net.parameters())), name


@pytest.mark.parametrize("decay_norm_and_bias", [False, True])
def test_groups_hold_every_trainable_parameter_once(decay_norm_and_bias: bool) -> None:
    """Backbone then head, weights then others, with decay and share of the learning rate; frozen ones in no group."""
    net = network.build("mobilenet_v3_small", 3, seed=0)
    groups = network.parameter_groups(net, 0.01, decay_norm_and_bias, head_scale=10.0)
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(ids) == sorted(id(parameter) for parameter in net.parameters())
    settings = [(group["weight_decay"], group["scale"]) for group in groups]
    if decay_norm_and_bias:
        assert settings == [(0.01, 1.0), (0.01, 10.0)]
        assert groups[1]["params"] == list(network.head(net).parameters())
    else:
        assert settings == [(0.01, 1.0), (0.0, 1.0), (0.01, 10.0), (0.0, 10.0)]
        assert all(parameter.ndim == 1 for parameter in groups[1]["params"])
        assert [group["params"] for group in groups[2:]] == [[p] for p in network.head(net).parameters()]
    network.freeze_backbone(net)
    head_groups = network.parameter_groups(net, 0.01, decay_norm_and_bias, head_scale=10.0)
    assert [(group["weight_decay"], group["scale"]) for group in head_groups] == settings[len(settings) // 2 :]
    assert [group["params"] for group in head_groups] == [group["params"] for group in groups[len(groups) // 2 :]]


def test_batchnorm_of_every_shape_keeps_its_statistics() -> None:
    """Also that of vectors, which LeViT of timm has between its linear layers."""
    net = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.Dropout())
    network.freeze_norm(net, "net")
    assert [part.training for part in net.train()] == [False, False, True]


def test_a_frozen_backbone_drops_nothing() -> None:
    """With a frozen backbone training sees the very features that evaluation sees, also in a copy and when wrapped."""
    net = network.build("efficientnet_b0", 3, seed=0)  # has drop-out, stochastic depth and BatchNorm
    network.freeze_backbone(net)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    expected = net.eval()(images)
    wraps: list[Any] = [net, deepcopy(net), nn.DataParallel(net), torch.compile(net, backend="eager")]
    for wrapper in wraps:
        assert torch.equal(wrapper.train()(images), expected)
        assert wrapper.training
        assert not any(module.training for module in wrapper.modules() if isinstance(module, nn.BatchNorm2d))


def one_step(net: nn.Module, side: int) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor, int]:
    """Gradients, buffers, the random stream afterwards, and the bytes kept for the backward pass, of one step."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(1)
    images, labels = torch.randn(4, 3, side, side), torch.arange(4) % 3
    torch.use_deterministic_algorithms(True)  # one algorithm for everything, or an error
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            nn.functional.cross_entropy(net.train()(images), labels).backward()
    finally:
        torch.use_deterministic_algorithms(False)
    weights = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    gradients = {name: parameter.grad for name, parameter in net.named_parameters() if parameter.grad is not None}
    size = sum(count for place, count in storages.items() if place not in weights)
    return gradients, dict(net.named_buffers()), torch.get_rng_state(), size


# densenet121 has layers that are handed a growing list; googlenet has blocks that stand in no container.
OF_MORE_KINDS = ("resnet18", "densenet121", "shufflenet_v2_x0_5", "convnext_tiny", "googlenet", "swin_t", "vit_b_32")
FURTHER = pytest.mark.nightly("further models; make test has two, with drop-out and stochastic depth")


@pytest.mark.parametrize(
    "name",
    ["mobilenet_v3_small", "efficientnet_b0",  # drop-out, stochastic depth
     *(pytest.param(name, marks=FURTHER) for name in (*OF_MORE_KINDS, *OF_TIMM))],
)  # fmt: skip
def test_checkpointing_changes_memory_and_nothing_else(name: str) -> None:
    """Gradients, BatchNorm statistics and the random stream are the same bytes, and less is kept for the backward."""
    plain, saving = network.build(name, 3, seed=0), network.build(name, 3, seed=0)
    network.checkpoint_blocks(saving, name)
    side = 224 if name == "vit_b_32" else 64
    gradients, buffers, stream, size = one_step(plain, side)
    saved_gradients, saved_buffers, saved_stream, saved_size = one_step(saving, side)
    for values, saved in ((gradients, saved_gradients), (buffers, saved_buffers)):
        assert values.keys() == saved.keys()
        assert [n for n in values if not torch.equal(values[n], saved[n])] == []
    assert torch.equal(stream, saved_stream)
    assert saved_size < 0.6 * size  # the stem, which ResNet-18 keeps, is more than half of what is left


def test_the_state_for_export_is_a_copy_in_float32() -> None:
    """Of each tensor by itself, contiguous, in memory of its own: of half weights in channels_last, and of counters."""
    net = network.build("resnet18", 3, 0).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    net.layer1.half()
    state = network.export_state(net)
    assert list(state) == sorted(net.state_dict())
    for name, value in net.state_dict().items():
        expected = value.float() if value.is_floating_point() else value
        assert (state[name].dtype, state[name].shape) == (expected.dtype, expected.shape)
        assert torch.equal(state[name], expected)
        assert state[name].is_contiguous()
    assert len({value.untyped_storage().data_ptr() for value in state.values()}) == len(state)
    net.fc.weight.data.zero_()
    assert state["fc.weight"].any()


@pytest.mark.parametrize("model", ["resnet18", OF_TIMM[1]])
def test_a_model_is_the_same_for_the_same_seed(model: str) -> None:
    """The seed decides the weights, whatever was drawn before."""
    torch.manual_seed(5)
    one = network.build(model, 3, seed=1).state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        two, other = (network.build(model, 3, seed=seed).state_dict() for seed in (1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def refused_by_torch() -> set[str]:
    """The operators of layers without a deterministic backward pass on a GPU, by torch's own documentation."""
    documented = (torch.use_deterministic_algorithms.__doc__ or "").partition("will throw a")[2]
    layers = re.findall(r"torch\.nn\.(\w+)` when attempting to differentiate a CUDA tensor", documented)
    return {re.sub(r"(?<!^)([A-Z])", r"_\1", layer).lower() + "_backward" for layer in layers}


@pytest.fixture(scope="module")
def called() -> dict[str, set[str]]:
    """Model → the operators of a training step, which is traced."""
    return {name: operators_of_a_step(name) for name in model_names.MODELS}


@TRACED
def test_no_model_calls_an_operator_that_is_not_compared(called: dict[str, set[str]]) -> None:
    """What models compute, test_portable.py compares on other CPUs; the rest only moves or compares values."""
    done = starts.run([sys.executable, "-m", "tests.ranks.operators"], cwd=PROJECT, check=True)
    compared = {name.rstrip("_") for name in json.loads(done.stdout)["called"]}
    others = {name.rstrip("_") for names in called.values() for name in names} - compared - MOVES
    assert others == set()


@TRACED
def test_the_models_without_a_deterministic_backward_pass_are_those_that_are_refused(
    called: dict[str, set[str]],
) -> None:
    """On a GPU torch refuses an operator of exactly those that rules.py names."""
    operators = refused_by_torch()
    assert {"adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward", "avg_pool3d_backward"} <= operators
    names = [name for name in model_names.MODELS if called[name] & operators]
    assert names == [name for name in model_names.MODELS if rules.contains(rules.NONDETERMINISTIC, name)]
