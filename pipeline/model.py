"""A torchvision classification model by its name, with our number of classes, and the groups its optimizer sees."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torchvision
from torch import Tensor, nn


def names() -> list[str]:
    """Every classification model torchvision has, sorted."""
    return sorted(torchvision.models.list_models(module=torchvision.models))


def build(name: str, classes: int, seed: int) -> nn.Module:
    """The model `name` with random weights drawn from `seed`, ending in `classes` logits.

    Auxiliary heads (GoogLeNet, Inception) are left out: every model maps [n, 3, h, w] to [n, classes].
    """
    options: dict[str, Any] = {"num_classes": classes}
    if name in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": True}
    torch.manual_seed(seed)
    with warnings.catch_warnings():  # these two warn that their own initialization is slow; it is what they define
        warnings.filterwarnings("ignore", message=".*initialization of .* weights", category=FutureWarning)
        model: nn.Module = torchvision.models.get_model(name, weights=None, **options)
    return model


def parameter_groups(model: nn.Module, weight_decay: float, decay_norm_and_bias: bool) -> list[dict[str, Any]]:
    """The parameters for an optimizer; biases and normalization weights (at most one axis) decay only if asked.

    `scale` is the group's learning rate as a multiple of the scheduled one.
    """
    weights = [p for p in model.parameters() if p.ndim > 1 or decay_norm_and_bias]
    others = [p for p in model.parameters() if not (p.ndim > 1 or decay_norm_and_bias)]
    groups: Iterable[tuple[list[nn.Parameter], float]] = ((weights, weight_decay), (others, 0.0))
    return [{"params": params, "weight_decay": decay, "scale": 1.0} for params, decay in groups if params]


def export_state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights and buffers on the CPU, floats as float32, by sorted name: what is saved as the model."""
    return {
        name: value.detach().to("cpu", torch.float32 if value.is_floating_point() else value.dtype).clone().contiguous()
        for name, value in sorted(model.state_dict().items())
    }
