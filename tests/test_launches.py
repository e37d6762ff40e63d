"""The number of kernels that a step starts on a GPU, counted on the CPU.

The host needs about 4 µs for each, so a small model waits for the host.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.speed import ours
from pipeline.config import params
from pipeline.learning import choices, loop
from pipeline.learning.choices import OPTIMIZERS, PARALLELS, PRECISIONS
from pipeline.learning.ema import Ema
from pipeline.learning.graphs import Graphs
from pipeline.learning.loop import Learner, Totals
from pipeline.loader import augment, resample
from pipeline.loader.batches import MEMORY_FORMATS, Batch, train_batches
from pipeline.loader.sampler import Share
from pipeline.models import network
from tests.helpers.emulation import emulator
from tests.helpers.graphs import RehearsedGraph
from tests.helpers.trainings import ALONE

# What torch gives to one launch of a _foreach_ operation [its MultiTensorApply.cuh]: 48 tensors, if three lists take
# part; and 320 blocks of 65,536 elements.
TENSORS, ELEMENTS = 48, 320 * 65536

# The most launches of a step with torch's SGD, fused as on a GPU, by model: eager, and with CUDA graphs, where a replay
# is not counted. `single` is one process; `elastic` has 8 shards on one process.
OF_A_STEP = {
    "single": {"resnet18": (195, 30), "resnet34": (325, 32)},
    "elastic": {"resnet18": (1580, 270), "resnet34": (2660, 330)},
}


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


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_a_batch_takes_few_launches(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, memory_format: str
) -> None:
    """With the augmentations of params.yaml, two launches make a batch."""
    gpu = emulator(tmp_path_factory.mktemp("emulated"))
    settings = params.load().train.model_copy(update={"batch_size": 16, "crop": 32, "memory_format": memory_format})
    dataset = ours.noise(64, 40, 4, torch.device("cpu"))
    crops = [batch.images for batch in islice(train_batches(dataset, settings, Share(range(1), 1), 0), 3)]
    monkeypatch.setattr(augment, "resample", partial(resample.by_kernels, launch=gpu.launch))
    with (counter := Launches()):
        batches = train_batches(dataset, settings, Share(range(1), 1), 0)
        by_kernels = [next(batches).images for _ in crops]
    assert all(torch.equal(*pair) for pair in zip(by_kernels, crops, strict=True))
    assert gpu.launched == ["weigh", "cut"] * 3
    assert counter.total <= 3 * 8, counter.by_name.most_common()  # 10 for each batch, with the two kernels


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("parallel", OF_A_STEP)
@pytest.mark.parametrize(
    "model",
    ["resnet18", pytest.param("resnet34", marks=pytest.mark.nightly("another model; make test has the smaller one"))],
)
def test_a_step_takes_few_launches(model: str, parallel: str, memory_format: str) -> None:
    """As many as the documents say, or few less. Buffers and gradients are copied many at a time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny: threads would wait for each other
    try:
        counts = [launches_of_a_step(model, parallel, memory_format, graphs) for graphs in (False, True)]
    finally:
        torch.set_num_threads(before)
    for counter, most in zip(counts, OF_A_STEP[parallel][model], strict=True):
        assert 0.95 * most <= counter.total <= most, counter.by_name.most_common()


def launches_of_a_step(model: str, parallel: str, memory_format: str, graphs: bool = False) -> Launches:
    """The launches of the second step of a training. A replay of a graph is not counted."""
    layout = MEMORY_FORMATS[memory_format]
    net = network.build(model, 5, 0).to(memory_format=layout)  # type: ignore[call-overload]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices, "_on_gpu", lambda groups: True)  # SGD is fused, as on a GPU
        optimizer = OPTIMIZERS["sgd"](network.parameter_groups(net, 5e-4, False), 0.1, 0.9, True)
    microbatches = {"single": 1, "elastic": 8}[parallel]
    passes = Graphs(partial(RehearsedGraph, net)) if graphs else loop.EAGER
    precision = PRECISIONS["fp32"]("cpu")
    learner = Learner(net, nn.CrossEntropyLoss(), optimizer, precision, Ema.create(net, 0.0), 0.0, passes)
    images, labels = torch.randn(16, 3, 32, 32).contiguous(memory_format=layout), torch.zeros(16, dtype=torch.int64)
    parallel_model = PARALLELS[parallel](net, ALONE, True, microbatches)
    stream = (Batch(step, images, labels, labels, 0) for step in range(3))
    steps = loop.train(learner, parallel_model, stream, [1e-3] * 3, Totals.zero(ALONE.device, microbatches))
    next(steps)
    with (counter := Launches()):
        next(steps)
    return counter
