"""CUDA graphs without a compiler give the bits of a training without graphs.

On a CPU all is real but the recording and the replay (tests/helpers/graphs.py): tests/test_graphs.py runs it.
"""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from pipeline.learning import loop
from pipeline.learning.ema import Ema
from pipeline.learning.graphs import CudaGraph, Graphs, Made
from pipeline.learning.world import World
from pipeline.loader.batches import MEMORY_FORMATS, Batch
from tests.gpu.training import NATIVE, Figures, batches, digest, setup, small_resnet, state_digest, train
from tests.helpers.graphs import RehearsedGraph
from tests.helpers.refusals import refuses


def with_dropout() -> nn.Module:
    """The small network with dropout before its last layer: a replay must draw other numbers each time."""
    *layers, last = small_resnet().children()
    return nn.Sequential(*layers, nn.Dropout(0.5), last)


class Counted(CudaGraph):
    """A graph that counts. A process has one case."""

    captured = replayed = 0

    def capture(self, work: Callable[[], Made]) -> Made:
        Counted.captured += 1
        return super().capture(work)

    def replay(self) -> None:
        Counted.replayed += 1
        super().replay()


def new_graphs(world: World, model: nn.Module) -> Graphs:
    """Graphs for the training of a model on this device."""
    return Graphs(Counted.factory() if world.device.type == "cuda" else partial(RehearsedGraph, model))


def counts(world: World) -> tuple[int, int]:
    """How many graphs were recorded in this process, and how often they were replayed."""
    kind = Counted if world.device.type == "cuda" else RehearsedGraph
    return kind.captured, kind.replayed


@pytest.mark.gpu
@pytest.mark.parametrize("precision", NATIVE)
@pytest.mark.parametrize("parallel", ["single", "elastic"])
@pytest.mark.parametrize("parts", ["1", "4"])
def test_bits(world: World, precision: str, parallel: str, parts: str) -> Figures:
    """Weights, statistics, moments and the loss scale are those of a training without graphs. One graph is recorded."""
    digests = []
    microbatches = int(parts) if parallel == "single" else 1  # elastic's wrapper knows its shards
    for has_graphs in (False, True):
        ready = setup(world, precision, parallel, make=with_dropout, microbatches=int(parts))
        graphs = new_graphs(world, ready.bare) if has_graphs else None
        losses = train(ready, batches(world, 0, 10), clip_norm=0.1, graphs=graphs, microbatches=microbatches)
        digests.append(digest(state_digest(ready), losses))
    assert counts(world) == (1, 10 * int(parts)), "every microbatch is a replay of one graph"
    assert digests[0] == digests[1], "graphs change no bit"
    return {"digest": digests[0][:16]}


def in_layout(layout: torch.memory_format) -> nn.Module:
    """The small network with its weights in this order."""
    return small_resnet().to(memory_format=layout)  # type: ignore[call-overload, no-any-return]


def stream(world: World) -> list[Batch]:
    """Batches of two sides, and one of mixed images."""
    first, second, third = batches(world, 0, 3), batches(world, 3, 6, side=48), batches(world, 6, 9)
    mixed = [replace(batch, targets=torch.eye(4, device=world.device)[batch.labels] * 0.9 + 0.025) for batch in third]
    return [*first, *second, *mixed]


@pytest.mark.gpu
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_shapes(world: World, memory_format: str) -> Figures:
    """Every side and every kind of targets is recorded once, and every side of an evaluation. A later evaluation has
    the weights of its time.
    """
    digests = []
    for has_graphs in (False, True):
        ready = setup(world, "bf16", make=lambda: in_layout(MEMORY_FORMATS[memory_format]))
        graphs = new_graphs(world, ready.bare) if has_graphs else None
        steps, average = stream(world), Ema.create(ready.bare, 0.9)
        logits: list[torch.Tensor] = []
        losses = train(ready, steps, graphs=graphs, ema=average)
        for weights in (average.swap(), nullcontext()):
            with weights:
                images = [batch.images for batch in steps]
                logits += loop.logits(ready.model, images, ready.precision, graphs or loop.EAGER)
            losses += train(ready, steps, graphs=graphs, ema=average)
        digests.append(digest(state_digest(ready), losses, logits, average.averages))
    assert counts(world) == (3 + 2, 27 + 18), "each shape is recorded once, and every pass is a replay"
    assert digests[0] == digests[1], "graphs change no bit"
    return {"digest": digests[0][:16]}


def frozen() -> nn.Module:
    """The small network, of which the last layer alone is trained."""
    net = small_resnet()
    for parameter in [*net.parameters()][:-2]:
        parameter.requires_grad_(False)
    return net


@pytest.mark.gpu
def test_frozen(world: World) -> Figures:
    """Weights without a gradient have none with graphs either, and stay."""
    digests = []
    for has_graphs in (False, True):
        ready = setup(world, "fp32", make=frozen)
        train(ready, batches(world, 0, 4), graphs=new_graphs(world, ready.bare) if has_graphs else None)
        digests.append(state_digest(ready))
    assert digests[0] == digests[1], "graphs change no bit"
    return {"digest": digests[0][:16]}


@pytest.mark.gpu
def test_restored(world: World) -> Figures:
    """`load_state_dict` copies into the recorded weights: the following steps are those of the restored state."""
    ready = setup(world, "fp16")
    graphs, weights = new_graphs(world, ready.bare), deepcopy(ready.bare.state_dict())
    scale = deepcopy(ready.precision.state_dict(ready.optimizer))
    digests = []
    for _ in range(2):
        ready.bare.load_state_dict(weights)
        ready.optimizer.state.clear()
        ready.precision.load_state_dict(deepcopy(scale), ready.optimizer)
        losses = train(ready, batches(world, 0, 2), graphs=graphs)
        digests.append(digest(state_digest(ready), losses))
    assert counts(world) == (1, 4), "the graph is recorded once"
    assert digests[0] == digests[1], "a restored state has the same steps"
    return {"digest": digests[0][:16]}


class Reading(nn.Module):
    """A model whose next kernel depends on a value of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_resnet()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.net(images)
        return outputs if outputs.sum().item() > 0 else -outputs


@pytest.mark.gpu
def test_refusal(world: World) -> Figures:
    """A model that reads a value is refused with the reason, and the GPU works on."""
    ready = setup(world, "fp32", make=Reading)
    with refuses(("train.cuda_graphs", "pair")) as error:
        train(ready, batches(world, 0, 1), graphs=new_graphs(world, ready.bare))
    reason = str(error.value)
    # The traceback holds the autograd graph of the failed recording. Its nodes belong to the stream of the recording,
    # and torch would warn of them in the next training.
    del error
    gc.collect()
    train(ready, batches(world, 0, 1))
    return {"reason": reason}
