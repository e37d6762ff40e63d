"""How the model runs on several processes and GPUs: one wrapper for each way.

Every member answers the same questions, so the loop never asks which one it has: which parts of a global batch does
this process take one after another, what is around each of them, and what is a part's loss to be divided by.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from pipeline.engine.elastic import Elastic
from pipeline.engine.world import World


@dataclass(frozen=True)
class ParallelModel:
    """A model wrapped for training on several processes."""

    model: nn.Module  # to be called with images
    mine: range  # this process's parts of a global batch: neighbours, all of one size
    divisor: int  # of a part's loss; then the gradients after the last part are those of the global batch's mean loss
    part: Callable[[int], AbstractContextManager[Any]]  # the context of the forward and backward pass of a part


def accumulating(model: nn.Module, world: World, parts: int) -> ParallelModel:
    """A wrapped model whose gradients add up from part to part. torch's DDP exchanges them only in the last one's
    backward pass; Apex's exchanges in each, which gives the same sum and costs more."""
    mine = world.share(parts)

    def part(number: int) -> AbstractContextManager[Any]:
        if isinstance(model, DistributedDataParallel) and number != mine[-1]:
            return model.no_sync()
        return nullcontext()

    return ParallelModel(model, mine, len(mine), part)


def single(model: nn.Module, world: World, deterministic: bool, parts: int) -> ParallelModel:
    return accumulating(model, world, parts)


def dp(model: nn.Module, world: World, deterministic: bool, parts: int) -> ParallelModel:
    """torch's DataParallel: one process, all visible GPUs; each forward pass copies the model to every one of them."""
    return accumulating(DataParallel(model), world, parts)


def ddp(model: nn.Module, world: World, deterministic: bool, parts: int) -> ParallelModel:
    """torch's DistributedDataParallel; with `deterministic`, with the same gradient buckets on every step.

    By default DDP sorts its buckets anew after the first step, so a resumed run would sum in another order than an
    uninterrupted one [measured: 62 of 122 tensors of a ResNet-18 differ on 3 and 4 processes]. It leaves them alone
    when it looks for unused parameters. BatchNorm buffers are ours to share (`distributed.broadcast_buffers`), once per
    epoch.
    """
    devices = [world.device] if world.device.type == "cuda" else None
    wrapped = DistributedDataParallel(
        model, device_ids=devices, broadcast_buffers=False, find_unused_parameters=deterministic
    )
    return accumulating(wrapped, world, parts)


def elastic(model: nn.Module, world: World, deterministic: bool, parts: int) -> ParallelModel:
    return ParallelModel(model, world.share(parts), 1, Elastic(model, world, parts).part)
