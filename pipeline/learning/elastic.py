"""Training whose weights do not depend on the number of processes: all sums follow one fixed tree.

A global batch always has the same number of *shards*. A leaf of the tree is one shard's gradients and BatchNorm
statistics. Every shard is computed by itself, with the same shapes, the same initial statistics, and its own seed of
drop-out. So a leaf has the same bits on every process. The leaves are added in one tree over the shard numbers. Here
are 8 shards on 3 processes:

                        0-7                    the sum; the optimizer gets this divided by 8
                 0-3           4-7
              0-1   2-3     4-5   6-7
              0 1   2 3     4 5   6 7          the leaves
              └┬┘   └────┬────┘ └─┬─┘
          process 0  process 1  process 2      has 0-1 │ 2-3, 4 │ 5, 6-7: the complete subtrees of its shards

Each process adds its leaves into complete subtrees. Then the processes exchange slices: process r receives the r-th
slice of every subtree and finishes the tree on it. Then the finished slices are gathered. Communication moves bytes and
never adds, so no sum depends on the number of processes. Gradients are sent in buckets, about in the order in which the
backward pass computes them. The buckets of a process's last shard are sent while its backward pass still runs.

If every process has one subtree, this sends as many bytes as a ring all-reduce; otherwise at most twice as many.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from pipeline.learning import collectives
from pipeline.learning.world import World, share

BUCKET_BYTES = 25 << 20  # of gradients, as in torch's DistributedDataParallel


@dataclass(frozen=True)
class Subtree:
    """The sum over the shards from `first` to `first + size - 1`."""

    first: int
    size: int
    total: Tensor


def grow(trees: list[Subtree], right: Subtree) -> None:
    """Append a subtree on the right. Two siblings become their parent, left + right."""
    while trees and trees[-1].size == right.size and right.first % (2 * right.size) == right.size:
        left = trees.pop()
        right = Subtree(left.first, 2 * right.size, left.total.add_(right.total))
    trees.append(right)


def root(trees: list[Subtree]) -> Tensor:
    """The sum over all subtrees, added from the right. There are several if the shards are not a power of two."""
    total = trees[-1].total
    for left in reversed(trees[:-1]):
        total = left.total.add_(total)
    return total


def subtrees(shards: range) -> list[tuple[int, int]]:
    """The complete subtrees of consecutive shards: (first shard, size) of each."""
    trees: list[Subtree] = []
    for shard in shards:
        grow(trees, Subtree(shard, 1, torch.empty(0)))
    return [(tree.first, tree.size) for tree in trees]


class Sum:
    """One tree of one step. It adds this process's leaves in the order of shards, and computes the mean of all."""

    def __init__(self, world: World, shards: int) -> None:
        self._shards, self._last = shards, world.share(shards)[-1]
        self._plan = [subtrees(share(shards, rank, world.size)) for rank in range(world.size)]
        self._trees: list[Subtree] = []
        self._receive: Callable[[], Tensor] = torch.Tensor  # waits for the slices of all processes

    def add(self, shard: int, tensors: list[Tensor]) -> None:
        """Add a leaf to the tree, as vectors. After this process's last leaf, start to send the slices."""
        leaf = torch.cat([tensor.detach().float() for tensor in tensors])
        grow(self._trees, Subtree(shard, 1, leaf))
        self._length = len(leaf)
        if shard == self._last and len(self._plan) > 1:
            slices = torch.stack([self._to_slices(tree.total) for tree in self._trees], 1)  # [process, subtree, slice]
            counts = [self._slice * len(trees) for trees in self._plan]
            self._receive = collectives.all_to_all(slices.view(-1), [slices[0].numel()] * len(self._plan), counts)

    @property
    def _slice(self) -> int:
        return -(-self._length // len(self._plan))

    def _to_slices(self, flat: Tensor) -> Tensor:
        """A vector as slices [process, slice]. The last slice is padded with zeros."""
        width = self._slice * len(self._plan)
        return nn.functional.pad(flat, (0, width - self._length)).view(len(self._plan), self._slice)

    def finish(self) -> Callable[[], Tensor]:
        """Finish the tree on this process's slice. Returns a function that waits for the mean of all leaves."""
        if len(self._plan) == 1:
            return lambda: root(self._trees) / self._shards
        trees: list[Subtree] = []
        plan = [subtree for process in self._plan for subtree in process]
        for (first, size), total in zip(plan, self._receive().view(-1, self._slice), strict=True):
            grow(trees, Subtree(first, size, total))
        wait = collectives.all_gather(root(trees) / self._shards)
        return lambda: wait()[: self._length]


class Elastic:
    """Sets a model's gradients to the mean over all shards, and its BatchNorm statistics to their mean."""

    def __init__(self, model: nn.Module, world: World, shards: int) -> None:
        self._world, self._shards = world, shards
        self._process_shards = world.share(shards)
        self._buffers = list(model.buffers())
        self._start = [torch.empty_like(buffer) for buffer in self._buffers]  # their values before the step
        # The statistics that a step changes: no step counters, and no frozen modules.
        modules = [module for module in model.modules() if module.training]
        self._means = [b for module in modules for b in module.buffers(recurse=False) if b.is_floating_point()]
        self._buckets = buckets([parameter for parameter in model.parameters() if parameter.requires_grad])
        self._targets: list[Sequence[Tensor]] = list(self._buckets)
        if self._means:
            self._targets.append(self._means)
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, number))

    @contextmanager
    def shard(self, shard: int) -> Iterator[None]:
        """The context for one shard's forward and backward pass. After the last shard, the gradients are the mean."""
        if shard == self._process_shards[0]:
            self._sums = [Sum(self._world, self._shards) for _ in self._targets]
            copy(self._start, self._buffers)
        else:
            copy(self._buffers, self._start)
        self._shard, self._next_bucket = shard, 0
        self._pending = [len(bucket) for bucket in self._buckets]  # gradients that each bucket waits for
        yield
        self._flush(len(self._buckets))  # also the parameters without a gradient
        if self._means:
            self._sums[-1].add(shard, [flatten(buffer, buffer) for buffer in self._means])
        if shard == self._process_shards[-1]:
            self._finish()

    def _on_gradient(self, number: int, _: nn.Parameter) -> None:
        """Send the buckets whose gradients are complete. Their order must be the same on all processes."""
        self._pending[number] -= 1
        end = self._next_bucket
        while end < len(self._buckets) and not self._pending[end]:
            end += 1
        self._flush(end)

    def _flush(self, end: int) -> None:
        """Add the gradients of the buckets before `end` to their trees, as this shard's leaves."""
        for number in range(self._next_bucket, end):
            bucket = self._buckets[number]
            leaf = [flatten(torch.zeros_like(p) if p.grad is None else p.grad, p) for p in bucket]
            self._sums[number].add(self._shard, leaf)
            for parameter in bucket:
                parameter.grad = None
        self._next_bucket = max(self._next_bucket, end)

    @torch.no_grad()
    def _finish(self) -> None:
        waits = [tree.finish() for tree in self._sums]  # start all before waiting for one
        for wait, tensors in zip(waits, self._targets, strict=True):
            values = wait().split([tensor.numel() for tensor in tensors])
            results = [torch.empty_like(t) if t.requires_grad else t for t in tensors]  # keeps the memory format
            copy(results, [unflatten(value, tensor) for value, tensor in zip(values, tensors, strict=True)])
            for tensor, result in zip(tensors, results, strict=True):
                if tensor.requires_grad:
                    tensor.grad = result
        self._sums = []


def memory_order(tensor: Tensor) -> list[int]:
    """The axes of a tensor, from the one with the longest steps in memory to the one with the shortest."""
    return sorted(range(tensor.dim()), key=tensor.stride().__getitem__, reverse=True)


def flatten(tensor: Tensor, like: Tensor) -> Tensor:
    """The elements as a vector, in the order in which those of `like` lie in memory.

    It is a view, and nothing is copied, if `tensor` has the memory format of `like`.
    """
    return tensor.permute(memory_order(like)).reshape(-1)


def unflatten(vector: Tensor, like: Tensor) -> Tensor:
    """The opposite of `flatten`: a view with the shape and the memory format of `like`."""
    axes = memory_order(like)
    return vector.view([like.shape[axis] for axis in axes]).permute(sorted(range(len(axes)), key=axes.__getitem__))


@torch.no_grad()
def copy(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy each value to its target. A GPU copies all tensors of one type in a few launches."""
    for dtype in {target.dtype for target in targets}:
        numbers = [number for number, target in enumerate(targets) if target.dtype == dtype]
        torch._foreach_copy_([targets[number] for number in numbers], [values[number] for number in numbers])


def buckets(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters in groups of about BUCKET_BYTES, from last to first, about the order of the backward pass."""
    groups: list[list[nn.Parameter]] = [[]]
    for parameter in reversed(parameters):
        if groups[-1] and 4 * sum(p.numel() for p in [*groups[-1], parameter]) > BUCKET_BYTES:
            groups.append([])
        groups[-1].append(parameter)
    return groups
