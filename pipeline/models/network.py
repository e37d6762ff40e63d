"""Classification models of torchvision and timm by name, and what training changes in any of them.

Freezing, gradient checkpointing and the parameter groups of an optimizer need one property of these models: one layer
maps to the classes. This is the head; everything else is the backbone. In torchvision's models the head is the last
Linear or Conv2d. A model of timm names it.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from pipeline.base.errors import Fault, UserError
from pipeline.config.model_names import EXACT, EXACT_MODELS, MINE, MODELS, OWN, TIMM
from pipeline.dataset.normalization import IMAGENET, Normalization
from pipeline.models import exact, own, timm_models

# torchvision's RoIAlign, which no model here has, imports torch's compiler for this one function. That takes half the
# CPU time with which a process that trains nothing starts [measured].
IN_PLACE_OF = "torch._dynamo.utils"
if IN_PLACE_OF in sys.modules:
    import torchvision
else:
    sys.modules[IN_PLACE_OF] = cast(Any, SimpleNamespace(is_compile_supported=lambda device_type: False))
    try:
        import torchvision
    finally:
        del sys.modules[IN_PLACE_OF]

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def is_known(name: str) -> bool:
    """Whether `build` can build the model."""
    if name.startswith(EXACT):
        return name in EXACT_MODELS
    return timm_models.is_known(name) if name.startswith(TIMM) else name in MODELS or bool(OWN.fullmatch(name))


def normalization(name: str) -> Normalization:
    """How the model's default weights expect pixels. Of torchvision's, all but efficientnet_v2_l have IMAGENET."""
    if name.startswith(EXACT):
        return exact.NORMALIZATION
    if name.startswith(TIMM):
        return timm_models.normalization(name)
    if name.startswith(MINE):
        return IMAGENET
    transforms = published(name).transforms()
    return Normalization(tuple(transforms.mean), tuple(transforms.std))


def published(name: str) -> Any:
    """The default weights that torchvision has published of its model: their `url` and their `transforms`."""
    return torchvision.models.get_model_weights(name).DEFAULT


def build(name: str, classes: int, seed: int) -> nn.Module:
    """The model `name` with random weights drawn from `seed`, ending in `classes` logits.

    Auxiliary heads (GoogLeNet, Inception) are left out: every model maps [n, 3, h, w] to [n, classes]. These two
    transform our normalized images to [-1, 1] themselves: their published weights were trained with such images.
    """
    options: dict[str, Any] = {"num_classes": classes}
    if name in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": True, "transform_input": True}
    torch.manual_seed(seed)
    if name.startswith(EXACT):
        return exact.build(name, classes)
    if name.startswith(MINE):
        return own.build(name, classes, seed)
    if name.startswith(TIMM):
        net: nn.Module = timm_models.build(name, classes)
        return net
    with warnings.catch_warnings():  # these two warn that their initialization is slow
        warnings.filterwarnings("ignore", message=".*initialization of .* weights", category=FutureWarning)
        model: nn.Module = torchvision.models.get_model(name, weights=None, **options)
    return model


def head(net: nn.Module) -> nn.Module:
    """The layer that maps to the classes: the one that timm names, or the last Linear or Conv2d of `modules()`."""
    return (
        timm_models.head(net)
        or [nn.Identity(), *(m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d))][-1]
    )


def head_name(net: nn.Module) -> str:
    """The name of the head among the model's modules."""
    last = head(net)
    name: str = next(name for name, module in net.named_modules() if module is last)
    return name


def without_head(net: nn.Module, name: str) -> nn.Module:
    """The model without its head, in evaluation mode: it maps images [n, 3, h, w] to features [n, d].

    Raises UserError if the head of the model `name` is no linear layer, so that the features are no vector, or has no
    bias, which a solution needs.
    """
    last = head(net)
    if not isinstance(last, nn.Linear) or last.bias is None:
        reason = f"the head of train.model: {name!r} is no linear layer with a bias, but {last}"
        raise UserError(Fault("train.head", "solved", "pair", reason, "trained, or another model"))
    net.set_submodule(head_name(net), nn.Identity())
    return net.eval()


def parameter_groups(
    model: nn.Module, weight_decay: float, decay_norm_and_bias: bool, head_scale: float = 1.0
) -> list[dict[str, Any]]:
    """The trainable parameters as groups for an optimizer: weights and others of the backbone, then those of the head.

    The others are biases and normalization weights (at most one axis): they decay only with `decay_norm_and_bias`.
    `scale` is the group's learning rate as a multiple of the scheduled one. Groups without parameters are left out.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    head_ids = {id(parameter) for parameter in head(model).parameters()}
    groups = []
    for in_head, scale in ((False, 1.0), (True, head_scale)):
        for decays, decay in ((True, weight_decay), (False, 0.0)):
            kind = in_head, decays
            members = [p for p in trainable if (id(p) in head_ids, p.ndim > 1 or decay_norm_and_bias) == kind]
            if members:
                groups.append({"params": members, "weight_decay": decay, "scale": scale})
    return groups


def freeze_backbone(net: nn.Module) -> None:
    """Freeze the backbone, so that only the head is trained.

    Its parameters need no gradient, and its modules stay in evaluation mode after `net.train()`: BatchNorm statistics
    do not change, and drop-out is off, also before the head. Call it before the model is wrapped.
    """
    last = head(net)
    for module in net.modules():
        if last not in module.modules():
            _freeze_mode(module)
    net.requires_grad_(False)
    last.requires_grad_(True)


def freeze_norm(net: nn.Module, name: str) -> None:
    """Let BatchNorm keep its statistics; its weights are trained. Call it before the model is wrapped.

    Raises UserError if the model `name` has no BatchNorm.
    """
    norms = [module for module in net.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        reason = f"it does nothing for train.model: {name!r}, which has no BatchNorm"
        raise UserError(Fault("train.freeze_norm", "true", "pair", reason, "false, or another model"))
    for module in norms:
        _freeze_mode(module)


def _freeze_mode(module: nn.Module) -> None:
    """Keep a module in evaluation mode."""
    module.eval()
    module.train = MethodType(_ignore_mode, module)  # type: ignore[method-assign]


def _ignore_mode(module: nn.Module, mode: bool = True) -> nn.Module:
    """`train` of a frozen module: changes nothing. It is bound as a method, so that a deep copy has its own."""
    return module


def checkpoint_blocks(net: nn.Module, name: str) -> None:
    """Checkpoint the model's blocks: the forward pass stores only their inputs, the backward pass computes them again.

    Gradients, buffers and drop-out are the same bytes as without. Evaluation and a copy of the model work as before.
    Raises UserError if the model `name` is no sequence of blocks.
    """
    blocks = _blocks(net)
    if not blocks:
        reason = f"it does nothing for train.model: {name!r}, which has no blocks"
        allowed = "false, or a model of blocks, such as resnet34"
        raise UserError(Fault("train.gradient_checkpointing", "true", "pair", reason, allowed))
    for block in blocks:
        block.forward = partial(_recompute, block.forward, block)


def _blocks(net: nn.Module) -> list[nn.Module]:
    """The modules of a sequence: residual blocks, encoder layers, dense layers, Inception modules.

    They are the model's children, if these have most of its parameters (GoogLeNet, Inception), or are in its outermost
    containers (all others). In timm's models a BatchNorm with its activation is a block, too.
    """
    parts = [part for part in net.children() if _is_composite(part)]
    return parts if _size(*parts) > _size(net) / 2 and len(parts) > 1 else list(_in_sequences(net))


def _size(*modules: nn.Module) -> int:
    """The number of parameters of these modules."""
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def _in_sequences(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost composite modules in a container."""
    for child in module.children():
        if _is_composite(child) and isinstance(module, CONTAINERS):
            yield child
        else:
            yield from _in_sequences(child)


def _is_composite(module: nn.Module) -> bool:
    """Whether a module has parts and is more than their container."""
    return not isinstance(module, CONTAINERS) and any(True for _ in module.children())


def _recompute(forward: Callable[..., Any], block: nn.Module, *inputs: Any) -> Any:
    """The block's `forward` on the inputs, computed again in the backward pass."""
    # DenseNet appends to the list that it gives to its layers; the second computation needs the list of the first.
    inputs = tuple([*value] if isinstance(value, list) else value for value in inputs)

    def contexts() -> tuple[Any, Any]:
        return nullcontext(), _preserve_buffers(block)

    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts)


@contextmanager
def _preserve_buffers(block: nn.Module) -> Iterator[None]:
    """A context in which the block's buffers are copies: the forward pass already updated the BatchNorm statistics."""
    saved_buffers = [(module, dict(module._buffers)) for module in block.modules()]
    for module, buffers in saved_buffers:
        module._buffers.update({name: buffer.clone() for name, buffer in buffers.items() if buffer is not None})
    try:
        yield
    finally:
        for module, buffers in saved_buffers:
            module._buffers.update(buffers)


def weights_fault(tensors: Mapping[Any, Tensor]) -> str:
    """The fault of the first tensor that cannot be a weight of a model; empty without a fault.

    Weights are real and finite numbers. Of complex numbers, torch would drop the imaginary part.
    """
    for name, values in tensors.items():
        if not isinstance(name, str):
            return f"a tensor's name is {name!r:.100}, which is not text"
        if values.layout is not torch.strided or values.is_meta or values.is_quantized or values.is_complex():
            return f"the tensor {name!r:.100} is sparse, without values, quantized, or of complex numbers"
        if values.is_floating_point() and not values.float().isfinite().all():
            return f"the tensor {name!r:.100} has values that are not finite numbers (NaN or infinity)"
    return ""


def export_state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights and buffers on the CPU, floats as float32, by sorted name: what is saved as the model.

    The device is read once for each type of numbers, not once for each tensor.
    """
    state = dict(sorted(model.state_dict().items()))
    for dtype in sorted({value.dtype for value in state.values()}, key=str):
        names = [name for name, value in state.items() if value.dtype == dtype]
        message = torch.cat([state[name].detach().flatten() for name in names]).to("cpu")
        for name, values in zip(names, message.split([state[name].numel() for name in names]), strict=True):
            copied = values.view(state[name].shape).clone()  # a memory of its own: safetensors refuses parts of one
            state[name] = copied.float() if copied.is_floating_point() else copied
    return state


def load_model_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Load a plain state dict. Raises RuntimeError if the names or the shapes are not the model's.

    The version numbers in the state dict are those of the model itself: MNASNet refuses to load a state without.
    """
    current = model.state_dict()
    if current.keys() != state.keys():
        raise RuntimeError(f"names that only one has: {', '.join(sorted(current.keys() ^ state.keys()))}")
    current.update(state)
    model.load_state_dict(current)
