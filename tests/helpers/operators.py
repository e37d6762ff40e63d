"""Which operators torch calls; models without memory behind their parameters."""

from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Operators(TorchDispatchMode):
    """Inside it the names of the operators that torch calls are collected, without their overloads."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(func.overloadpacket.__name__.lstrip("_"))
        return func(*args, **(kwargs or {}))


class WithoutMemory(TorchFunctionMode):
    """Inside it torch.empty gives meta tensors, so a large model is built at once (its parameters are made so)."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **((kwargs or {}) | ({"device": "meta"} if func is torch.empty else {})))


def shape_of(name: str, classes: int) -> nn.Module:
    """The model without memory behind its parameters."""
    options = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    with WithoutMemory():
        net: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=classes, **options)
    return net


def operators_of_a_step(name: str) -> set[str]:
    """The operators of a forward and a backward pass, traced without memory and without arithmetic."""
    side = 299 if name == "inception_v3" else 224
    net, images = shape_of(name, 3).to("meta").train(), torch.empty(2, 3, side, side, device="meta")
    with (operators := Operators()):
        net(images).sum().backward()
    return operators.names
