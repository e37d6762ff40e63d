"""Buffers of several types on two ranks: `python -m tests.ranks.buffers FOLDER` writes FOLDER/<rank>.pt.

It has the buffers before and after the broadcast, and the number of messages.
"""

import os
import sys
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from pipeline.learning import collectives
from pipeline.running import group, rendezvous


def model(rank: int) -> nn.Module:
    """A model whose buffers differ by rank: float32 of several shapes, float64, counters, and flags."""
    net = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm1d(2))
    net.register_buffer("matrix", torch.arange(6.0).view(2, 3).t() + rank)
    net.register_buffer("fraction", torch.full((2,), 1 / 3 + rank, dtype=torch.float64))
    net.register_buffer("flags", torch.tensor([True, rank > 0]))
    for buffer in (net[0].running_mean, net[0].num_batches_tracked):
        assert isinstance(buffer, torch.Tensor)
        buffer.add_(rank + 1)
    return net


if __name__ == "__main__":
    world = rendezvous.world_of(os.environ, "cpu")
    net = model(world.rank)
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with group.join(world, 300), patch.object(dist, "broadcast", wraps=dist.broadcast) as broadcast:
        collectives.broadcast_buffers(net)
    after = dict(net.named_buffers())
    torch.save((before, after, broadcast.call_count), Path(sys.argv[1]) / f"{world.rank}.pt")
