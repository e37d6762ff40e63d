"""The places where the host reads a value from the device, counted on the CPU. On a GPU each of them is a wait."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

READS = {"item", "tolist", "cpu", "__bool__", "__int__", "__float__", "__index__"}


class Reads(TorchFunctionMode):
    """Counts reads inside the block by the name of the method.

    A copy to the CPU is one that names "cpu": torch itself names devices by objects, where a tensor stays on its own.
    A copy with `non_blocking` is no read, and neither is what is done with the result of any copy. The wait for its
    event is one (`synchronize`), unless a later event has been recorded: then the device has finished this one long
    before. `numpy` does not count: on a GPU it would raise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()
        self._events = 0
        self._on_host: dict[int, Tensor] = {}  # kept, so that no other tensor gets the same id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result, name = func(*args, **kwargs), getattr(func, "__name__", "")
        inputs, to_host = tensors_of(args), name == "cpu" or (name == "to" and "cpu" in targets(args, kwargs))
        if to_host and any(result is tensor for tensor in inputs):
            result = result.clone()  # as from a device: the values are then another tensor
        from_host = any(id(tensor) in self._on_host for tensor in inputs)
        if not from_host and (name in READS or to_host) and not kwargs.get("non_blocking"):
            self.by_name[name] += 1
        if to_host or from_host:
            results = [tensor for tensor in tensors_of(result) if all(tensor is not one for one in inputs)]
            self._on_host |= {id(tensor): tensor for tensor in results}
        return result

    def event(self, device: torch.device) -> Callable[[], None]:
        """Takes the place of `readout._event`: returns the wait for an event that is recorded now."""
        self._events += 1
        number = self._events

        def synchronize() -> None:
            if number == self._events:
                self.by_name["synchronize"] += 1

        return synchronize

    def taken(self) -> int:
        """The number of reads since the last call."""
        count = self.by_name.total()
        self.by_name.clear()
        return count


def targets(args: Any, kwargs: dict[str, Any]) -> list[str]:
    """The arguments of `Tensor.to` that are text."""
    return [value for value in (*args, kwargs.get("device")) if isinstance(value, str)]


def tensors_of(values: Any) -> list[Tensor]:
    """The tensors in nested lists and tuples."""
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]
