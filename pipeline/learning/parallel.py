"""The model on several processes and GPUs: one wrapper for each value of train.parallel.

Every wrapper returns a ParallelModel, so the training loop has no branch for any of them.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel

from pipeline.learning import collectives
from pipeline.learning.elastic import Elastic
from pipeline.learning.world import World
from pipeline.loader.sampler import Share


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
    A network of the user's own may read other buffers than those of BatchNorm when it trains. A checkpoint has those of
    rank 0, so each step begins with them.
    """
    share = Share(world.share(microbatches), microbatches)
    parts = [part for part in model.modules() if not isinstance(part, _BatchNorm)]
    has_state = any(True for part in parts for _ in part.buffers(recurse=False))

    def microbatch(number: int) -> AbstractContextManager[Any]:
        if has_state and number == share.microbatches[0]:
            collectives.broadcast_buffers(model)
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
    when it looks for unused parameters. BatchNorm buffers are broadcast by `collectives.broadcast_buffers`, once per
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
    return ParallelModel(
        model, Share(world.share(microbatches), microbatches), 1, Elastic(model, world, microbatches).shard
    )
