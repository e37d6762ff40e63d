"""CUDA graphs without a compiler give the bits of a training without graphs. The CPU's part is tests/test_graphs.py."""

import pytest
import torch
from torch import nn

from pipeline.engine.choices import MEMORY_FORMATS
from pipeline.engine.world import World
from tests.gpu.training import NATIVE, Figures, batches, digest, setup, small_resnet, state_digest, train


def with_dropout() -> nn.Module:
    """The small network with dropout before its last layer: a replay must draw other numbers each time."""
    *layers, last = small_resnet().children()
    return nn.Sequential(*layers, nn.Dropout(0.5), last)


@pytest.mark.gpu(needs="cuda")
@pytest.mark.parametrize("precision", NATIVE)
@pytest.mark.parametrize("parallel", ["single", "elastic"])
@pytest.mark.parametrize("parts", ["1", "4"])
def test_bits(world: World, precision: str, parallel: str, parts: str) -> Figures:
    """Weights, statistics, moments, averages and the loss scale are those of a training without graphs."""
    digests = {}
    own = int(parts) if parallel == "single" else 1  # elastic's wrapper knows its shards
    for graphs in (False, True):
        ready = setup(world, precision, parallel, make=with_dropout, microbatches=int(parts))
        losses = train(ready, batches(world, 0, 10), clip_norm=1.0, graphs=graphs, microbatches=own)
        digests[graphs] = digest(state_digest(ready), losses)
    assert digests[True] == digests[False], "graphs change no bit"
    return {"digest": digests[True][:16]}


def in_layout(layout: torch.memory_format) -> nn.Module:
    """The small network with its weights in this order."""
    return small_resnet().to(memory_format=layout)  # type: ignore[call-overload, no-any-return]


@pytest.mark.gpu(needs="cuda")
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_sides(world: World, memory_format: str) -> Figures:
    """Images that grow are recorded once for each side, and graphs still change no bit."""
    layout = MEMORY_FORMATS[memory_format]
    digests = {}
    for graphs in (False, True):
        ready = setup(world, "bf16", make=lambda: in_layout(layout))
        stream = [*batches(world, 0, 3), *batches(world, 3, 6, side=48), *batches(world, 6, 9)]
        losses = train(ready, stream, graphs=graphs)
        digests[graphs] = digest(state_digest(ready), losses)
    assert digests[True] == digests[False], "graphs change no bit"
    return {"digest": digests[True][:16]}
