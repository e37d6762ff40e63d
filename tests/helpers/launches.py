"""The launches of GPU kernels that a piece of code would make, counted on the CPU."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# What torch gives to one launch of a _foreach_ operation [its MultiTensorApply.cuh]: 48 tensors, if three lists take
# part; and 320 blocks of 65,536 elements.
TENSORS, ELEMENTS = 48, 320 * 65536

# The most launches of a step with torch's SGD, fused as on a GPU, by model: eager, and with CUDA graphs, where a replay
# is not counted. `single` is one process; `elastic` has 8 shards on one process.
OF_A_STEP = {
    "single": {"resnet18": (195, 30), "resnet34": (325, 32)},
    "elastic": {"resnet18": (1580, 270), "resnet34": (2660, 330)},
}
OF_A_BATCH = 2


class Launches(TorchDispatchMode):
    """Counts operations inside the block: each is one launch, except a view or an allocation, which is none.

    A GPU takes more for a few operations (such as a convolution) and none for a copy from the CPU. So this is the
    number of operations that the host starts, which is what its time depends on.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.by_name: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket._qualified_op_name.removeprefix("aten::")
        view = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
        if name.startswith(("_foreach_", "_fused_")):
            self.by_name[name] += of_foreach(args[0])
        elif not view and not name.startswith(("empty", "_local_scalar_dense")):
            self.by_name[name] += 1
        return result

    @property
    def total(self) -> int:
        return self.by_name.total()


def of_foreach(tensors: Sequence[Tensor]) -> int:
    """The launches of an operation on many tensors, rounded up. Other types of numbers or memory formats need more."""
    return max(math.ceil(len(tensors) / TENSORS), math.ceil(sum(t.numel() for t in tensors) / ELEMENTS))
