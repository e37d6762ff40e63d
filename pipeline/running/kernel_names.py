"""The names of the library kernels of a training's first step on a GPU. A resume compares them (running/resume.py).

cuDNN and cuBLAS choose a kernel for each convolution and for each product of matrices. If the workspace of a kernel
does not fit into the free memory, PyTorch takes the next kernel without a message [PyTorch 2.11, Conv_v8.cpp,
`try_configs`]. The next kernel may give other bits. Each start chooses again.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

import torch
from torch.profiler import ProfilerActivity, profile

from pipeline.loader.batches import Batch

Names = dict[str, int]  # the name of a kernel → how often it runs, relative to the others
Kernels = dict[str, Names]  # the size of the crops → the kernels of a step

# Kernels of cuDNN and of cuBLAS. torch's own are not compared: nothing chooses among them, and they may differ from
# step to step (an overflow in fp16 skips the update of the weights).
LIBRARY = re.compile(r"gemm|conv|xmma|cutlass|wgrad|dgrad|fprop|cudnn|nvjet|gemv|splitK", re.IGNORECASE)


def relative(names: Iterable[str]) -> Names:
    """The library kernels among these names, by name. A count is divided by the greatest divisor of all counts.

    So the result is the same for any number of microbatches and of processes, and with the passes before the recording
    of a CUDA graph.
    """
    counts = Counter(name for name in names if LIBRARY.search(name))
    divisor = math.gcd(*counts.values())
    return {name: counts[name] // divisor for name in sorted(counts)}


def digests(kernels: Kernels) -> Mapping[str, str]:
    """The SHA-256 of the kernels, by the size of the crops. Equal hashes: the same kernels."""
    texts = {size: "".join(f"{count} {name}\n" for name, count in names.items()) for size, names in kernels.items()}
    return {size: hashlib.sha256(text.encode()).hexdigest() for size, text in texts.items()}


def watched(steps: Iterator[Batch], take: Callable[[str, list[str]], None]) -> Iterator[Batch]:
    """The steps. The first step runs under torch's profiler. `take` gets the size of its crops and the names of all
    kernels that ran on the GPU, before the caller gets the step.
    """
    # Without acc_events torch warns of events that are lost after a second profile.
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as record:
        first = list(islice(steps, 1))
    for batch in first:
        events = record.events() or ()
        on_gpu = [event.name for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
        take(" × ".join(map(str, batch.images.shape[-2:])), on_gpu)
        yield batch
    yield from steps


# whether the steps run on a GPU, and the same bytes are promised → the steps
STEPS: dict[bool, Callable[[Iterator[Batch], Callable[[str, list[str]], None]], Iterator[Batch]]] = {
    False: lambda steps, take: steps,
    True: watched,
}
