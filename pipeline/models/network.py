"""A classification model of torchvision or timm by its name, and what training can do to any of them as it is.

Freezing, gradient checkpointing and the groups of parameters that an optimizer sees rest on one fact about these
models: one layer maps to the classes. That is the head; everything else is the backbone. In torchvision's models it is
the last Linear or Conv2d. A model of timm names its own.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MethodType
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.base.errors import Fault, UserError
from pipeline.config.model_names import TIMM
from pipeline.models import timm_models

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def names() -> list[str]:
    """Every classification model torchvision has, sorted."""
    return sorted(torchvision.models.list_models(module=torchvision.models))


def is_known(name: str) -> bool:
    """Whether `build` can build the model."""
    return timm_models.is_known(name) if name.startswith(TIMM) else name in names()


def build(name: str, classes: int, seed: int) -> nn.Module:
    """The model `name` with random weights drawn from `seed`, ending in `classes` logits.

    Auxiliary heads (GoogLeNet, Inception) are left out: every model maps [n, 3, h, w] to [n, classes]. These two take
    our normalized images over into [-1, 1] themselves, which is what their published weights were trained with.
    """
    options: dict[str, Any] = {"num_classes": classes}
    if name in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": True, "transform_input": True}
    torch.manual_seed(seed)
    if name.startswith(TIMM):
        net: nn.Module = timm_models.build(name, classes)
        return net
    with warnings.catch_warnings():  # these two warn that their own initialization is slow; it is what they define
        warnings.filterwarnings("ignore", message=".*initialization of .* weights", category=FutureWarning)
        model: nn.Module = torchvision.models.get_model(name, weights=None, **options)
    return model


def head(net: nn.Module) -> nn.Module:
    """The layer that maps to the classes: the one that timm names, or the last Linear or Conv2d as defined."""
    return timm_models.head(net) or [m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d)][-1]


def parameter_groups(
    model: nn.Module, weight_decay: float, decay_norm_and_bias: bool, head_scale: float = 1.0
) -> list[dict[str, Any]]:
    """The trainable parameters for an optimizer: weights and others of the backbone, then those of the head.

    Biases and normalization weights (at most one axis) are the others: they decay only if asked. `scale` is the
    group's learning rate as a multiple of the scheduled one. Groups without parameters are left out.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    of_head = {id(parameter) for parameter in head(model).parameters()}
    return [
        {"params": chosen, "weight_decay": weight_decay if decays else 0.0, "scale": head_scale if last else 1.0}
        for last in (False, True)
        for decays in (True, False)
        if (chosen := [p for p in trainable if (id(p) in of_head, p.ndim > 1 or decay_norm_and_bias) == (last, decays)])
    ]


def freeze_backbone(net: nn.Module) -> None:
    """Let only the head be trained; the rest becomes a fixed function of the image.

    Its parameters need no gradient, and its modules stay in evaluation mode whatever `net.train()` says: BatchNorm
    statistics do not move, and nothing is dropped, not even right before the head. Call it before the model is wrapped.
    """
    last = head(net)
    for module in net.modules():
        if last not in module.modules():
            module.eval()
            module.train = MethodType(_stay, module)  # type: ignore[method-assign]
    net.requires_grad_(False)
    last.requires_grad_(True)


def _stay(module: nn.Module, mode: bool = True) -> nn.Module:
    """What a frozen module does when it is told to train. A method, so that a deep copy has its own."""
    return module


def checkpointed(net: nn.Module, name: str) -> None:
    """Have the model's blocks keep only their input in the forward pass, and compute the rest again in the backward.

    Gradients, buffers and drop-out are the same bytes as without. Evaluation, and a copy of the model, work as before.
    Raises UserError if the model `name` is no sequence of blocks.
    """
    blocks = _blocks(net)
    if not blocks:
        reason = f"it does nothing for train.model: {name!r}, which has no blocks"
        allowed = "false, or a model of blocks, such as resnet34"
        raise UserError(Fault("train.gradient_checkpointing", "true", "pair", reason, allowed))
    for block in blocks:
        block.forward = partial(_recomputed, block.forward, block)


def _blocks(net: nn.Module) -> list[nn.Module]:
    """The modules that follow one another: residual blocks, encoder layers, dense layers, Inception modules.

    They are the model's own parts, if these hold most of it (GoogLeNet, Inception), or stand in its outermost sequences
    (all others). In timm's models a BatchNorm with its activation is a part, too.
    """
    parts = [part for part in net.children() if _composite(part)]
    return parts if _size(*parts) > _size(net) / 2 and len(parts) > 1 else list(_in_sequences(net))


def _size(*modules: nn.Module) -> int:
    """The number of parameters of these modules."""
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def _in_sequences(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost composite modules that stand in a container."""
    for child in module.children():
        if _composite(child) and isinstance(module, CONTAINERS):
            yield child
        else:
            yield from _in_sequences(child)


def _composite(module: nn.Module) -> bool:
    """Whether a module has parts and is more than their container."""
    return not isinstance(module, CONTAINERS) and any(True for _ in module.children())


def _recomputed(forward: Callable[..., Any], block: nn.Module, *inputs: Any) -> Any:
    """The block's `forward` on the inputs, computed again in the backward pass."""
    # DenseNet goes on appending to the list that it hands to its layers; the second time needs it as it was.
    inputs = tuple([*given] if isinstance(given, list) else given for given in inputs)
    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), _buffers_kept(block)))


@contextmanager
def _buffers_kept(block: nn.Module) -> Iterator[None]:
    """Inside it the block's buffers are copies: BatchNorm statistics moved in the forward pass, and once is enough."""
    kept = [(module, dict(module._buffers)) for module in block.modules()]
    for module, buffers in kept:
        module._buffers.update({name: buffer.clone() for name, buffer in buffers.items() if buffer is not None})
    try:
        yield
    finally:
        for module, buffers in kept:
            module._buffers.update(buffers)


def unusable(tensors: Mapping[Any, Tensor]) -> str:
    """Why these are not the weights of a model, with the first tensor that is not usable; empty if they all are.

    A model takes real and finite numbers. Of complex ones, torch would drop the imaginary part.
    """
    for name, values in tensors.items():
        if not isinstance(name, str):
            return f"a tensor's name is {name!r:.100}, which is not text"
        kinds = {
            f"of layout {str(values.layout).removeprefix('torch.')}": values.layout is not torch.strided,
            "without values (device meta)": values.is_meta,
            "quantized": values.is_quantized,
            "of complex numbers": values.is_complex(),
        }
        for kind, applies in kinds.items():
            if applies:
                return f"the tensor {name!r:.100} is {kind}"
        if values.is_floating_point() and not values.float().isfinite().all():
            return f"the tensor {name!r:.100} has values that are not finite numbers (NaN or infinity)"
    return ""


def export_state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights and buffers on the CPU, floats as float32, by sorted name: what is saved as the model."""
    return {
        name: value.detach().to("cpu", torch.float32 if value.is_floating_point() else value.dtype).clone().contiguous()
        for name, value in sorted(model.state_dict().items())
    }
