"""The model on several processes and GPUs: one wrapper for each value of train.parallel.

Every wrapper returns a ParallelModel, so the training loop has no branch for any of them.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from pipeline.engine.elastic import Elastic
from pipeline.engine.world import World

Value = TypeVar("Value", bound=np.generic)


@dataclass(frozen=True)
class Share:
    """The microbatches of every global batch that one process computes, one after another."""

    microbatches: range  # consecutive numbers
    total: int  # of the global batch; all microbatches have the same size

    @classmethod
    def of_process(cls, world: World, total: int) -> "Share":
        """The share of this process if each global batch has `total` microbatches."""
        return cls(world.share(total), total)

    def take(self, values: NDArray[Value]) -> NDArray[Value]:
        """The values of this share's images; the first axis of `values` is the global batch."""
        size = len(values) // self.total
        return values[self.microbatches.start * size : self.microbatches.stop * size]


@dataclass(frozen=True)
class ParallelModel:
    """A model wrapped for training on several processes."""

    model: nn.Module  # called with images
    share: Share
    divisor: int  # of a microbatch's loss: then the gradients are those of the mean loss over the global batch
    microbatch: Callable[[int], AbstractContextManager[Any]]  # the context of one microbatch's forward and backward


def accumulating_model(model: nn.Module, world: World, microbatches: int) -> ParallelModel:
    """A wrapped model whose gradients are summed over the microbatches of this process.

    torch's DDP exchanges gradients only in the backward pass of the last microbatch. Apex's exchanges in each one:
    that gives the same sum and takes longer.
    """
    share = Share.of_process(world, microbatches)

    def microbatch(number: int) -> AbstractContextManager[Any]:
        if isinstance(model, DistributedDataParallel) and number != share.microbatches[-1]:
            return model.no_sync()
        return nullcontext()

    return ParallelModel(model, share, len(share.microbatches), microbatch)


def single(model: nn.Module, world: World, deterministic: bool, microbatches: int) -> ParallelModel:
    """One process and one device."""
    return accumulating_model(model, world, microbatches)


def dp(model: nn.Module, world: World, deterministic: bool, microbatches: int) -> ParallelModel:
    """torch's DataParallel: one process, all visible GPUs; each forward pass copies the model to every one of them."""
    return accumulating_model(DataParallel(model), world, microbatches)


def ddp(model: nn.Module, world: World, deterministic: bool, microbatches: int) -> ParallelModel:
    """torch's DistributedDataParallel; with `deterministic`, with the same gradient buckets on every step.

    By default DDP sorts its buckets again after the first step, so a resumed run would sum in another order than an
    uninterrupted one [measured: 62 of 122 tensors of a ResNet-18 differ on 3 and 4 processes]. It leaves them alone
    when it looks for unused parameters. BatchNorm buffers are broadcast by `distributed.broadcast_buffers`, once per
    epoch.
    """
    devices = [world.device] if world.device.type == "cuda" else None
    # Of convolutions of 1 × 1 in channels_last: their two layouts are the same memory.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    ddp_model = DistributedDataParallel(
        model, device_ids=devices, broadcast_buffers=False, find_unused_parameters=deterministic
    )
    return accumulating_model(ddp_model, world, microbatches)


def elastic(model: nn.Module, world: World, deterministic: bool, microbatches: int) -> ParallelModel:
    """The same weights for any number of processes (see elastic.py); a microbatch is a shard."""
    return ParallelModel(model, Share.of_process(world, microbatches), 1, Elastic(model, world, microbatches).shard)
