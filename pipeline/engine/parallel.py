"""How the model is spread over processes and GPUs: a table from name to wrap, and one unwrap."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from pipeline.engine.world import World


def _single(model: nn.Module, world: World, deterministic: bool) -> nn.Module:
    return model


def _dp(model: nn.Module, world: World, deterministic: bool) -> nn.Module:
    """torch's DataParallel: one process, all visible GPUs; each forward pass copies the model to every one of them."""
    return DataParallel(model)


def _ddp(model: nn.Module, world: World, deterministic: bool) -> nn.Module:
    """torch's DistributedDataParallel; with `deterministic`, with the same gradient buckets on every step.

    By default DDP sorts its buckets anew after the first step, so a resumed run would sum in another order than an
    uninterrupted one [measured: 62 of 122 tensors of a ResNet-18 differ on 3 and 4 processes]. It leaves them alone
    when it looks for unused parameters. BatchNorm buffers are ours to share (`world.share_buffers`), once an epoch.
    """
    devices = [world.device] if world.device.type == "cuda" else None
    return DistributedDataParallel(
        model, device_ids=devices, broadcast_buffers=False, find_unused_parameters=deterministic
    )


def _apex_ddp(model: nn.Module, world: World, deterministic: bool) -> nn.Module:
    from pipeline.engine import apex

    return apex.ddp(model, deterministic)


PARALLELS: dict[str, Callable[[nn.Module, World, bool], nn.Module]] = {
    "single": _single,
    "dp": _dp,
    "ddp": _ddp,
    "apex_ddp": _apex_ddp,
}


def _apex_sync_bn(model: nn.Module) -> nn.Module:
    from pipeline.engine import apex

    return apex.sync_bn(model)


def _torch_sync_bn(model: nn.Module) -> nn.Module:
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted


# BatchNorm over the pictures of all processes instead of each one's own.
SYNC_BNS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "none": lambda model: model,
    "torch": _torch_sync_bn,
    "apex": _apex_sync_bn,
}


def accumulating(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """The context of one part of a batch: DDP exchanges gradients only in the backward pass of the last part.

    The other wrappers exchange in every part, which gives the same sum and costs more.
    """
    return model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext()


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside whatever it was wrapped in."""
    wrapped = isinstance(model, DataParallel | DistributedDataParallel) or type(model).__module__.startswith("apex.")
    return unwrap(model.module) if wrapped and isinstance(model.module, nn.Module) else model
