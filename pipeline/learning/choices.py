"""The tables from a name in params.yaml to its function: precision, parallel wrapper, optimizer, loss and others.

Apex is imported when one of its entries is called, not before: it is not installed everywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from pipeline.learning import loss, parallel
from pipeline.learning.graphs import Graphs
from pipeline.learning.loop import Eager, Passes
from pipeline.learning.parallel import ParallelModel
from pipeline.learning.precision import Native, Precision
from pipeline.learning.world import World

Groups = list[dict[str, Any]]  # of parameters, as torch's optimizers take them


def _apex() -> ModuleType:
    """The module that wraps Apex. Raises ModuleNotFoundError if Apex is not installed."""
    from pipeline.learning import apex

    return apex


# name → (device type) → precision
PRECISIONS: dict[str, Callable[[str], Precision]] = {
    "fp32": Native.create,
    "tf32": lambda device_type: Native.create(device_type, tf32=True),
    "bf16": lambda device_type: Native.create(device_type, torch.bfloat16),
    "fp16": lambda device_type: Native.create(device_type, torch.float16),
    "O0": lambda device_type: _apex().Amp("O0"),
    "O1": lambda device_type: _apex().Amp("O1"),
    "O2": lambda device_type: _apex().Amp("O2"),
    "O3": lambda device_type: _apex().Amp("O3"),
}


def _apex_ddp(model: nn.Module, world: World, deterministic: bool, microbatches: int) -> ParallelModel:
    return parallel.accumulating_model(_apex().ddp(model, deterministic), world, microbatches)


# name → (model, world, deterministic, microbatches of a global batch) → ParallelModel
PARALLELS: dict[str, Callable[[nn.Module, World, bool, int], ParallelModel]] = {
    "single": parallel.single,
    "dp": parallel.dp,
    "ddp": parallel.ddp,
    "apex_ddp": _apex_ddp,
    "elastic": parallel.elastic,
}

# name → (model) → the model with BatchNorm over the images of all processes, instead of those of each process
SYNC_BNS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "none": lambda model: model,
    "torch": nn.SyncBatchNorm.convert_sync_batchnorm,
    "apex": lambda model: _apex().sync_bn(model),
}


def _on_gpu(groups: Groups) -> bool | None:
    """The option `fused` of SGD: on a GPU one kernel over all parameters; on the CPU torch decides."""
    return True if groups[0]["params"][0].device.type == "cuda" else None


def _sgd(groups: Groups, lr: float, momentum: float, nesterov: bool) -> Optimizer:
    """torch's SGD. On a GPU its kernel itself skips a step with an overflow, so the host does not wait for it."""
    optimizer = SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=_on_gpu(groups))
    if _on_gpu(groups) and momentum:
        # If the first step is skipped, torch 2.11 would keep a momentum that the kernel has not written.
        for parameter in (parameter for group in groups for parameter in group["params"]):
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def _fused_option(groups: Groups) -> bool | None:
    """The option `fused` of Adam, one operator per parameter: true on the CPU; on a GPU torch decides.

    The other forms use torch.sqrt, whose last bit depends on the kind of CPU.
    """
    return True if groups[0]["params"][0].device.type == "cpu" else None


# name → (parameter groups, lr, momentum, nesterov) → optimizer. The schedule sets the lr of every step.
OPTIMIZERS: dict[str, Callable[[Groups, float, float, bool], Optimizer]] = {
    "sgd": _sgd,
    "adam": lambda groups, lr, momentum, nesterov: Adam(groups, lr=lr, fused=_fused_option(groups)),
    "adamw": lambda groups, lr, momentum, nesterov: AdamW(groups, lr=lr, fused=_fused_option(groups)),
    "fused_sgd": lambda groups, lr, momentum, nesterov: _apex().fused_sgd(groups, lr, momentum, nesterov),
}

# whether CUDA graphs are recorded here → how images go through the model
PASSES: dict[bool, Callable[[], Passes]] = {False: Eager, True: Graphs}

# name → (logits float32 [n, classes]) → the loss [n, classes] of each image, for each class that could be its label
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "cross_entropy": loss.cross_entropies,
    "focal": loss.focal_losses,
}

# name → (training images per class) → the weight of each class in the loss
CLASS_WEIGHTS: dict[str, Callable[[Mapping[str, int]], Sequence[float]]] = {
    "none": lambda counts: [1.0] * len(counts),
    "balanced": loss.balanced_weights,
}
