"""Networks of whole numbers: an image has the same features, to the last bit, on every CPU and every GPU.

`train.model: exact/<name>` is timm's EfficientNet-Lite of this name, whose weights and values are whole numbers. The
absolute products that a convolution adds sum up to less than 2**24 for any image: `quantize` chooses the weights of
each channel so. Then float32 adds them exactly, in any order. Every kernel, tile, batch, memory format and number of
threads gives the same sum. After it come an addition of whole numbers, one product, one rounding and one limit: single
operations, which IEEE 754 defines. The head adds in float64, from weights that are multiples of one power of two
(learning/ridge.py: `Head.on_grid`).

The scales are a pure function of the weights. Those after a ReLU6 follow from its range, the others from the BatchNorm
before them: its outputs have the mean β and the standard deviation |γ| [Nagel et al. 2019, data-free quantization].

A network that is compiled, or computed in half precision, is not exact. `check_device` compares a device with sums in
float64 on the CPU.
"""

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.base.errors import Fault, UserError
from pipeline.config.model_names import EXACT, TIMM
from pipeline.dataset.normalization import Normalization
from pipeline.models import timm_models

LARGEST = 2**24  # float32 has every whole number up to this one
WEIGHT_LEVELS = 2**15 - 1  # the most of a weight, in each direction
LEVELS = 511  # of a value without ReLU6, in each direction
RELU_LEVELS = 255  # of a value with ReLU6, and of a pixel in each direction
DEVIATIONS = 6  # a value without ReLU6 is limited to so many standard deviations
CLASSIFIER = "classifier."  # begins the names of the head's tensors, timm's and ours
UNIT = 2**11  # features are in 1/UNIT
NORMALIZATION = Normalization((0.5,) * 3, (1 / 510,) * 3)  # a pixel of 0 to 255 becomes 2 · pixel - 255


def timm_name(name: str) -> str:
    """The name of timm's model that a network of whole numbers is made of."""
    return TIMM + name.removeprefix(EXACT)


class Layer(nn.Module):
    """A convolution with its BatchNorm. The result is 0 to RELU_LEVELS, or without ReLU6 -LEVELS to LEVELS."""

    weight: Tensor
    offset: Tensor
    factor: Tensor

    def __init__(self, conv: Any, has_relu: bool) -> None:
        super().__init__()
        self.kernel, self.stride, self.groups = int(conv.kernel_size[0]), int(conv.stride[0]), int(conv.groups)
        self.padding = None if type(conv).__name__ == "Conv2dSame" else conv.padding[0]
        self.sums_in = torch.float32
        self.low, self.high = (0, RELU_LEVELS) if has_relu else (-LEVELS, LEVELS)
        self.register_buffer("weight", torch.zeros(conv.weight.shape, dtype=torch.int16))
        self.register_buffer("offset", torch.zeros(conv.out_channels))
        self.register_buffer("factor", torch.zeros(conv.out_channels))

    def forward(self, values: Tensor) -> Tensor:
        if self.padding is None:  # TensorFlow's "same": at the right and at the bottom there may be one more
            down, right = (self.missing(side) for side in values.shape[-2:])
            values = F.pad(values, (right // 2, right - right // 2, down // 2, down - down // 2))
        values, weight, offset = (tensor.to(self.sums_in) for tensor in (values, self.weight, self.offset))
        sums = F.conv2d(values, weight, offset, self.stride, self.padding or 0, 1, self.groups).float()
        return sums.mul_(self.factor[:, None, None]).round_().clamp_(self.low, self.high)

    def missing(self, side: int) -> int:
        """How many values are added to a side, so that the output has the side / the stride, rounded up."""
        return max((-(-side // self.stride) - 1) * self.stride + self.kernel - side, 0)


class Block(nn.Module):
    """Layers; if `adds`, their result and the block's input are added, each in its share of the new scale."""

    shares: Tensor

    def __init__(self, layers: list[Layer], adds: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.register_buffer("shares", torch.zeros(2 if adds else 0))

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.layers(values)
        if not len(self.shares):
            return result
        sums = (result * self.shares[0]).round() + (values * self.shares[1]).round()
        return sums.clamp(-LEVELS, LEVELS)


class Head(nn.Linear):
    """A linear layer that adds in float64. Of features in 1/UNIT, and weights on a grid, no sum is rounded."""

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features.double(), self.weight.double(), self.bias.double()).float()


class Exact(nn.Module):
    """The network. It maps pixels [n, 3, h, w], normalized by NORMALIZATION, to logits [n, classes]."""

    def __init__(self, name: str, net: nn.Module, classes: int) -> None:
        """`net`: timm's model, which gives the structure."""
        super().__init__()
        self.name = name
        self.blocks = nn.Sequential(
            *(Block([Layer(conv, relu) for conv, _, relu in layers], adds) for layers, adds in _structure(net))
        )
        self.classifier = Head(timm_models.head(net).in_features, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        values = pixels.round().clamp(-RELU_LEVELS, RELU_LEVELS)
        # The same whole numbers, in two thirds of the time of a CPU [measured].
        values = self.blocks(values.contiguous(memory_format=torch.channels_last))
        places = values.shape[-2] * values.shape[-1]
        maps = values * (places / UNIT)  # a feature is the mean of its map; `heatmap.explain` finds the maps
        features = (maps.sum((2, 3)) * (UNIT / places)).round() / UNIT  # the rounding undoes that of the factor
        logits: Tensor = self.classifier(features)
        return logits


def build(name: str, classes: int) -> Exact:
    """The network `name` (exact/…) without weights: they are zeros. The head is drawn from torch's generator."""
    return Exact(name, timm_models.build(timm_name(name), 1), classes)


def quantize(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the network `name`, without those of the head, from those of timm's model.

    They are computed in float64, element by element or by sums that are rounded once: every CPU gives the same bits.
    """
    net = timm_models.build(timm_name(name), 1)
    net.load_state_dict(net.state_dict() | _without_head(tensors))
    result = Exact(name, net.eval().requires_grad_(False), 1)
    blocks: Any = result.blocks
    scale, highest = 1 / RELU_LEVELS, RELU_LEVELS  # of the values that enter a layer
    mean = variance = torch.zeros(0, dtype=torch.float64)
    for block, (layers, adds) in zip(blocks, _structure(net), strict=True):
        entry = scale
        for layer, (conv, norm, _) in zip(block.layers, layers, strict=True):
            gain = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
            weight = conv.weight.double() * gain[:, None, None, None]
            bias = (norm.bias.double() - norm.running_mean.double() * gain) / scale
            step = _steps(weight, bias, highest)
            layer.weight = (weight / step[:, None, None, None]).round().to(torch.int16)
            layer.offset = (bias / step).round().float()
            beta, gamma = norm.bias.double(), norm.weight.double()
            widest = 6.0 if layer.low == 0 else float((beta.abs() + DEVIATIONS * gamma.abs()).max())
            layer.factor = (step * scale * layer.high / widest).float()
            scale, highest = widest / layer.high, layer.high
        new_mean, new_variance = beta, gamma**2
        if adds:
            new_mean, new_variance = new_mean + mean, new_variance + variance
            after = float((new_mean.abs() + DEVIATIONS * new_variance.sqrt()).max()) / LEVELS
            block.shares = torch.tensor([scale / after, entry / after])
            scale = after
        mean, variance = new_mean, new_variance
    return _without_head(result.state_dict())


def _steps(weight: Tensor, bias: Tensor, highest: int) -> Tensor:
    """The size of a whole number of each channel's weights: so small that all sums are exact, and no smaller.

    A sum is at most Σ |weight| / step · highest + |bias| / step, and what rounding adds. `bias` is in units of the
    values that enter the layer, of which `highest` is the largest.
    """
    rounding = weight[0].numel() * highest / 2 + 1
    totals = [math.fsum(channel) for channel in weight.abs().flatten(1).tolist()]  # torch's order depends on the CPU
    sums = torch.tensor(totals, dtype=torch.float64) * highest + bias.abs()
    return torch.maximum(sums / (LARGEST - 1 - rounding), weight.abs().amax((1, 2, 3)) / WEIGHT_LEVELS).clamp(min=1e-30)


def _without_head(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in tensors.items() if not name.startswith(CLASSIFIER)}


def check_device(net: nn.Module, side: int, device: torch.device) -> None:
    """Raise UserError if `net` is such a network, and its sums are not exact on this device, on which it is.

    Two images of `side` pixels are compared with sums in float64 on the CPU.
    """
    if not isinstance(net, Exact):
        return
    reference = deepcopy(net).to("cpu")
    for layer in reference.modules():
        if isinstance(layer, Layer):
            layer.sums_in = torch.float64
    whole = torch.arange(2 * 3 * side * side, dtype=torch.int64) * 7919 % 511 - 255  # all values, in no simple order
    images = whole.reshape(2, 3, side, side).float()
    with torch.no_grad():
        differing = int((net(images.to(device)).to("cpu") != reference(images)).sum())
    if differing:
        reason = f"{differing:,} numbers differ from sums in float64 on the CPU, so this device does not add exactly"
        remedy = f"report the device, or take {timm_name(net.name)}"
        raise UserError(Fault("train.model", net.name, "machine", reason, remedy=remedy))


def _structure(net: nn.Module) -> Iterator[tuple[list[tuple[Any, Any, bool]], bool]]:
    """For each block of timm's model: (convolution, BatchNorm, whether a ReLU6 follows) of each layer, and `adds`."""
    model: Any = net
    yield [(model.conv_stem, model.bn1, True)], False
    for stage in model.blocks:
        for block in stage:
            if hasattr(block, "conv_pwl"):
                parts = (block.conv_pw, block.bn1, True), (block.conv_dw, block.bn2, True)
                yield [*parts, (block.conv_pwl, block.bn3, False)], block.has_skip
            else:
                yield [(block.conv_dw, block.bn1, True), (block.conv_pw, block.bn2, False)], block.has_skip
    yield [(model.conv_head, model.bn2, True)], False
