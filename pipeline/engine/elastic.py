"""Weights that do not depend on the number of processes: these only decide who adds, in one fixed tree of sums.

The global batch is always the same number of *shards*. A leaf is one shard's gradients and BatchNorm statistics,
computed alone: the same shapes, the same statistics to start from, and drop-out of its own, whichever process does it.
Leaves are added in one tree over the shards' numbers, here of 8 shards on 3 processes:

                        0-7                    the whole sum; divided by 8 it is what the optimizer sees
                 0-3           4-7
              0-1   2-3     4-5   6-7
              0 1   2 3     4 5   6 7          the leaves
              └┬┘   └────┬────┘ └─┬─┘
          process 0  process 1  process 2      has 0-1 │ 2-3, 4 │ 5, 6-7: the complete subtrees of its own shards

Each process adds its leaves up to complete subtrees. Then slices are swapped: the r-th slice of every subtree goes to
process r, which finishes the tree on its slice, and the finished slices are gathered. Communication moves bytes and
never adds, so no sum depends on how many processes there are. Gradients travel in buckets, about in the order in which
the backward pass makes them; those of a process's last shard set out while that pass goes on.

The bytes moved are those of a ring's all-reduce if every process has one subtree, and up to twice that if not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from pipeline.engine import distributed
from pipeline.engine.world import World, share

BUCKET_BYTES = 25 << 20  # of gradients, as in torch's DistributedDataParallel


@dataclass(frozen=True)
class Subtree:
    """The sum over the shards first to first + size - 1."""

    first: int
    size: int
    total: Tensor


def grow(trees: list[Subtree], new: Subtree) -> None:
    """Put a subtree to the right of those there are; siblings become their parent, left + right."""
    while trees and trees[-1].size == new.size and new.first % (2 * new.size) == new.size:
        left = trees.pop()
        new = Subtree(left.first, 2 * new.size, left.total.add_(new.total))
    trees.append(new)


def root(trees: list[Subtree]) -> Tensor:
    """The whole sum. Shards whose number is no power of two leave several subtrees: these are added from the right."""
    total = trees[-1].total
    for left in reversed(trees[:-1]):
        total = left.total.add_(total)
    return total


def subtrees(shards: range) -> list[tuple[int, int]]:
    """First shard and size of the complete subtrees of consecutive shards."""
    trees: list[Subtree] = []
    for shard in shards:
        grow(trees, Subtree(shard, 1, torch.empty(0)))
    return [(tree.first, tree.size) for tree in trees]


class Sum:
    """One tree of a step: takes this process's leaves in the order of their shards, and gives the mean of all."""

    def __init__(self, world: World, shards: int) -> None:
        self._shards, self._last = shards, world.share(shards)[-1]
        self._plan = [subtrees(share(shards, rank, world.size)) for rank in range(world.size)]
        self._trees: list[Subtree] = []
        self._swapped: Callable[[], Tensor] = torch.Tensor

    def add(self, shard: int, tensors: list[Tensor]) -> None:
        """Put a leaf on the tree; after this process's last one the slices set out."""
        flat = torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors])
        grow(self._trees, Subtree(shard, 1, flat))
        self._length = len(flat)
        if shard == self._last and len(self._plan) > 1:
            slices = torch.stack([self._sliced(tree.total) for tree in self._trees], 1)  # [process, subtree, slice]
            counts = [self._slice * len(trees) for trees in self._plan]
            self._swapped = distributed.all_to_all(slices.view(-1), [slices[0].numel()] * len(self._plan), counts)

    @property
    def _slice(self) -> int:
        return -(-self._length // len(self._plan))

    def _sliced(self, flat: Tensor) -> Tensor:
        """A vector as one slice a process, the last one filled up."""
        width = self._slice * len(self._plan)
        return nn.functional.pad(flat, (0, width - self._length)).view(len(self._plan), self._slice)

    def finish(self) -> Callable[[], Tensor]:
        """Finish the tree on this process's slice; returns what waits for the mean of all leaves, as one vector."""
        if len(self._plan) == 1:
            return lambda: root(self._trees) / self._shards
        whole: list[Subtree] = []
        places = [tree for trees in self._plan for tree in trees]
        for (first, size), total in zip(places, self._swapped().view(-1, self._slice), strict=True):
            grow(whole, Subtree(first, size, total))
        gathered = distributed.all_gather(root(whole) / self._shards)
        return lambda: gathered()[: self._length]


class Elastic:
    """Gives a model's parameters the mean gradient over all shards, and its buffers the mean statistics."""

    def __init__(self, model: nn.Module, world: World, shards: int) -> None:
        self._world, self._shards, self._mine = world, shards, world.share(shards)
        self._buffers = list(model.buffers())
        # Statistics that move: not the counters of steps, nor those of frozen modules.
        moving = [module for module in model.modules() if module.training]
        self._means = [b for module in moving for b in module.buffers(recurse=False) if b.is_floating_point()]
        self._buckets = buckets([parameter for parameter in model.parameters() if parameter.requires_grad])
        self._targets: list[Sequence[Tensor]] = [*self._buckets, *([self._means] if self._means else [])]
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(self._ready, number))

    @contextmanager
    def part(self, shard: int) -> Iterator[None]:
        """The context of one shard's forward and backward pass; when the last one ends, gradients are the mean."""
        if shard == self._mine[0]:
            self._sums = [Sum(self._world, self._shards) for _ in self._targets]
            self._start = [buffer.clone() for buffer in self._buffers]
        for buffer, value in zip(self._buffers, self._start, strict=True):
            buffer.copy_(value)
        self._shard, self._next, self._missing = shard, 0, [len(bucket) for bucket in self._buckets]
        yield
        self._flush(len(self._buckets))  # also what got no gradient
        if self._means:
            self._sums[-1].add(shard, self._means)
        if shard == self._mine[-1]:
            self._finish()

    def _ready(self, number: int, _: nn.Parameter) -> None:
        """A gradient is there. Buckets set out in one order, for the processes must agree on it."""
        self._missing[number] -= 1
        full = next((n for n in range(self._next, len(self._buckets)) if self._missing[n]), len(self._buckets))
        self._flush(full)

    def _flush(self, end: int) -> None:
        """Take the gradients of the buckets before `end` as this shard's leaves."""
        for number in range(self._next, end):
            bucket = self._buckets[number]
            leaf = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            self._sums[number].add(self._shard, leaf)
            for parameter in bucket:
                parameter.grad = None
        self._next = max(self._next, end)

    @torch.no_grad()
    def _finish(self) -> None:
        waits = [total.finish() for total in self._sums]  # all are under way before one is waited for
        for wait, tensors in zip(waits, self._targets, strict=True):
            values = wait().split([tensor.numel() for tensor in tensors])
            for tensor, value in zip(tensors, values, strict=True):
                if tensor.requires_grad:
                    tensor.grad = torch.empty_like(tensor).copy_(value.view_as(tensor))  # in its memory format
                else:
                    tensor.copy_(value.view_as(tensor))
        self._sums = []


def buckets(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters from last to first, about as the backward pass comes to them, in groups of BUCKET_BYTES."""
    groups: list[list[nn.Parameter]] = [[]]
    for parameter in reversed(parameters):
        if groups[-1] and 4 * sum(p.numel() for p in [*groups[-1], parameter]) > BUCKET_BYTES:
            groups.append([])
        groups[-1].append(parameter)
    return groups
