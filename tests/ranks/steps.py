"""Eight training steps of a small model without BatchNorm, with the engine's loop.

    python -m tests.ranks.steps FOLDER PARALLEL LOSS CLASS_WEIGHTS MICROBATCHES…

PARALLEL, LOSS and CLASS_WEIGHTS are values of these params of train. For every number of microbatches per
process, rank 0 writes
FOLDER/<world size>-<microbatches>.pt: the weights, the totals, and how often it exchanged gradients.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from pipeline.learning import collectives, determinism, loop
from pipeline.learning.choices import CLASS_WEIGHTS, LOSSES, PARALLELS, PRECISIONS
from pipeline.learning.ema import Ema
from pipeline.learning.loop import Learner, Totals
from pipeline.learning.loss import criterion
from pipeline.learning.world import World
from pipeline.loader import sampler
from pipeline.loader.batches import Batch
from pipeline.loader.sampler import Share
from pipeline.models import network
from pipeline.running import group, rendezvous

STEPS, BATCH, IMAGES = 8, 12, 48
LABELS = (torch.arange(IMAGES) % 8 - 5).clamp(min=0)  # 36 images of the first class, 6 of each of the two others
COUNTS = {"a": 36, "b": 6, "c": 6}


def small_model() -> nn.Module:
    """A convolution and a linear layer, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3))


def batches(share: Share) -> Iterator[Batch]:
    """This process's share of every global batch of random images."""
    images = torch.randn(IMAGES, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    for step in range(STEPS):
        rows = torch.from_numpy(share.take(sampler.batch_rows(0, step, BATCH, IMAGES)))
        yield Batch(step, images[rows], LABELS[rows], LABELS[rows], 0)


def train(world: World, parallel: str, loss: str, class_weights: str, microbatches: int) -> dict[str, Any]:
    """The weights, totals and number of exchanges after a training with so many microbatches per process."""
    model, exchanges = small_model(), [0]
    optimizer = torch.optim.SGD(network.parameter_groups(model, 1e-3, False), lr=0.1, momentum=0.9)
    total = world.size * microbatches
    parallel_model = PARALLELS[parallel](model, world, True, total)

    def count(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        exchanges[0] += 1
        return allreduce_hook(group, bucket)

    if isinstance(parallel_model.model, DistributedDataParallel):
        parallel_model.model.register_comm_hook(None, count)
    by_class = criterion(LOSSES[loss], CLASS_WEIGHTS[class_weights](COUNTS), 0.1)
    learner = Learner(model, by_class, optimizer, PRECISIONS["fp32"]("cpu"), Ema.create(model, 0.0), 0.0)
    totals = Totals.zero(world.device, total)
    for _ in loop.train(learner, parallel_model, batches(parallel_model.share), [0.1] * STEPS, totals):
        pass
    weights: dict[str, Tensor] = model.state_dict()
    return {"weights": weights, "sums": collectives.all_reduce_sum(totals.sums).sum(0), "exchanges": exchanges[0]}


def main() -> None:
    folder, parallel, loss, class_weights, counts = Path(sys.argv[1]), *sys.argv[2:5], map(int, sys.argv[5:])
    determinism.make_deterministic(1, True)
    world = rendezvous.world_of(os.environ, "cpu")
    with group.join(world, 60):
        for microbatches in counts:
            result = train(world, parallel, loss, class_weights, microbatches)
            if world.is_main:
                torch.save(result, folder / f"{world.size}-{microbatches}.pt")


if __name__ == "__main__":
    main()
