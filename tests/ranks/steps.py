"""Train with the engine's loop, and write digests of the result, or the result.

    python -m tests.ranks.steps FOLDER STEPS SHARDS IMAGES CASES

CASES is a JSON list of (model, parallel, precision, optimizer, options); "small" is a model. For each case, rank 0
appends a line to FOLDER/<world size>: the SHA-256 of the weights, and the SHA-256 of buffers, averages and totals with
the loss scale. With the option `save` it also writes FOLDER/<save>.pt: the weights, the totals, and how often it
exchanged gradients.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from pipeline.learning import collectives, determinism, loop
from pipeline.learning.choices import CLASS_WEIGHTS, LOSSES, OPTIMIZERS, PARALLELS, PRECISIONS
from pipeline.learning.ema import Ema
from pipeline.learning.loop import Learner, Totals
from pipeline.learning.loss import criterion
from pipeline.learning.world import World
from pipeline.loader import sampler
from pipeline.loader.batches import Batch
from pipeline.loader.sampler import Share
from pipeline.models import network
from pipeline.running import group, rendezvous

Case = tuple[str, str, str, str, dict[str, Any]]
COUNTS = {"a": 36, "b": 6, "c": 6}


def small_model() -> nn.Module:
    """A convolution and a linear layer without BatchNorm, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3))


def digest(tensors: Iterable[Tensor]) -> str:
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def batches(share: Share, steps: int, images: int) -> Iterator[Batch]:
    """This process's share of every global batch of so many random images, most of which are of the first class."""
    rows = torch.from_numpy(share.take(torch.arange(images).numpy()))
    for step in range(steps):
        source = torch.Generator().manual_seed(step)
        pixels = torch.randn(images, 3, 32, 32, generator=source)
        labels = (torch.randint(8, (images,), generator=source) - 5).clamp(min=0)
        yield Batch(step, pixels[rows], labels[rows], labels[rows], sampler.dropout_seed(0, step))


def train(world: World, case: Case, steps: int, shards: int, images: int, folder: Path) -> tuple[str, str]:
    """The two digests after a training."""
    model, parallel, precision_name, optimizer_name, options = case
    net = small_model() if model == "small" else network.build(model, 3, 0)
    if options.get("checkpointing"):
        network.checkpoint_blocks(net, model)
    precision = PRECISIONS[precision_name]("cpu")
    groups = network.parameter_groups(net, 1e-3, False)
    optimizer = OPTIMIZERS[optimizer_name](groups, 0.01, 0.9, True)
    net, optimizer = precision.prepare(net, optimizer)
    ema = Ema.create(net, options.get("ema", 0.0))
    microbatches = options.get("microbatches", shards if parallel == "elastic" else world.size)
    parallel_model, exchanges = PARALLELS[parallel](net, world, True, microbatches), list[int]()

    def exchange(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        exchanges.append(bucket.index())
        return allreduce_hook(group, bucket)

    if isinstance(parallel_model.model, DistributedDataParallel):
        parallel_model.model.register_comm_hook(None, exchange)
    weights = CLASS_WEIGHTS[options.get("class_weights", "none")](COUNTS)
    by_class = criterion(LOSSES[options.get("loss", "cross_entropy")], weights, 0.1)
    totals = Totals.zero(world.device, microbatches)
    learner = Learner(net, by_class, optimizer, precision, ema, options.get("clip", 0.0))
    rate = 1e-3 if optimizer_name == "adamw" else 0.01
    stream = batches(parallel_model.share, steps, images)
    for _ in loop.train(learner, parallel_model, stream, [rate] * steps, totals):
        pass
    sums = collectives.all_reduce_sum(totals.sums).sum(0)
    if world.is_main and "save" in options:
        result = {"weights": net.state_dict(), "sums": sums, "exchanges": len(exchanges)}
        torch.save(result, folder / f"{options['save']}.pt")
    state = json.dumps(precision.state_dict(optimizer), sort_keys=True, default=str)
    return digest(net.parameters()), digest([*net.buffers(), *ema.averages, sums]) + state


def main() -> None:
    folder, (steps, shards, images), cases = Path(sys.argv[1]), map(int, sys.argv[2:5]), json.loads(sys.argv[5])
    determinism.make_deterministic(1, True)
    world = rendezvous.world_of(os.environ, "cpu")
    with group.process_group(world, "auto", 300, rendezvous.connect_store(world, 300)):
        for case in cases:
            digests = collectives.all_gather_object(train(world, case, steps, shards, images, folder))
            # ddp's statistics differ between processes
            assert len(set(digests)) == 1 or case[1] != "elastic", "the processes differ"
            if world.is_main:
                with (folder / str(world.size)).open("a") as table:
                    print(*digests[0], *case, sep="\t", file=table)


if __name__ == "__main__":
    main()
