"""The least time of a training step on a GPU: its operators, counted, over what the GPU can do at most.

Convolutions and products of matrices take their operations over the rate of the tensor cores. Everything else takes
the bytes that it reads and writes over the bandwidth of the memory. The two are added: in a step one follows the other.
Neither caches nor fused operators are taken into account.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


@dataclass(frozen=True)
class Peak:
    """The most that a GPU can do in a second, by its data sheet, without sparsity."""

    half: float  # operations in bfloat16 and float16
    tf32: float
    fp32: float
    memory: float  # bytes


# NVIDIA's data sheets of the H100 (SXM) and of the H200.
PEAKS = {
    "NVIDIA H100 80GB HBM3": Peak(989e12, 495e12, 67e12, 3.35e12),
    "NVIDIA H200": Peak(989e12, 495e12, 67e12, 4.8e12),
}


@dataclass
class Work:
    """What a step computes and moves."""

    operations: dict[torch.dtype, float]  # of convolutions and products, by the type of their inputs
    bytes: float  # that everything else reads and writes

    def seconds(self, peak: Peak, tf32: bool) -> float:
        """The least time on a GPU."""
        rates = {torch.float32: peak.tf32 if tf32 else peak.fp32}
        computing = sum(count / rates.get(dtype, peak.half) for dtype, count in self.operations.items())
        return computing + self.bytes / peak.memory


class _Count(TorchDispatchMode):
    """Adds up every operator that runs inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = Work({}, 0.0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            dtype = next(leaf.dtype for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
            operations = float(count(*args, **(kwargs or {}), out_val=result))
            self.work.operations[dtype] = self.work.operations.get(dtype, 0.0) + operations
        elif not func.is_view and func._overloadpacket is not torch.ops.aten.detach:
            arguments = zip(func._schema.arguments, args, strict=False)
            changed = [value for each, value in arguments if each.alias_info and each.alias_info.is_write]
            self.work.bytes += _bytes([args, kwargs]) + _bytes(changed if result is None else result)
        return result


def _bytes(values: Any) -> int:
    """The bytes of the tensors in nested values. A tensor without memory of its own (expanded) counts as its memory."""
    return sum(
        min(leaf.numel() * leaf.itemsize, leaf.untyped_storage().nbytes())
        for leaf in tree_leaves(values)
        if isinstance(leaf, Tensor)
    )


def work(run: Callable[[], Any]) -> Work:
    """What `run` computes and moves, forwards and backwards. Kernels outside torch's operators are not counted."""
    count = _Count()
    with count:
        run()
    return count.work


def facts(work: Work, seconds: float, device: str, tf32: bool) -> dict[str, float]:
    """The least milliseconds of a step, and its share of the seconds that it took; empty for an unknown device."""
    peak = PEAKS.get(device)
    if peak is None:
        return {}
    least = work.seconds(peak, tf32)
    return {"bound_ms": 1e3 * least, "of_bound": least / seconds}


def union(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of spans of time (begin, end)."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
