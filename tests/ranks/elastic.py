"""Train with the engine's loop, and write digests of the result.

    python -m tests.ranks.elastic FOLDER STEPS SHARDS IMAGES CASES

CASES is a JSON list of (model, parallel, precision, optimizer, options). For each case, rank 0 appends a line to
FOLDER/<world size>: the SHA-256 of the weights, and the SHA-256 of buffers, averages and totals with the loss scale.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.learning import collectives, determinism, loop
from pipeline.learning.choices import OPTIMIZERS, PARALLELS, PRECISIONS
from pipeline.learning.ema import Ema
from pipeline.learning.loop import Learner, Totals
from pipeline.learning.world import World
from pipeline.loader import sampler
from pipeline.loader.batches import Batch
from pipeline.loader.sampler import Share
from pipeline.models import network
from pipeline.running import group, rendezvous

Case = tuple[str, str, str, str, dict[str, Any]]


def digest(tensors: Iterable[Tensor]) -> str:
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def batches(share: Share, steps: int, images: int) -> Iterator[Batch]:
    """This process's share of every global batch of so many random images."""
    rows = torch.from_numpy(share.take(torch.arange(images).numpy()))
    for step in range(steps):
        source = torch.Generator().manual_seed(step)
        pixels = torch.randn(images, 3, 32, 32, generator=source)
        labels = torch.randint(3, (images,), generator=source)
        yield Batch(step, pixels[rows], labels[rows], labels[rows], sampler.dropout_seed(0, step))


def train(world: World, case: Case, steps: int, shards: int, images: int) -> tuple[str, str]:
    """The two digests after a training."""
    model, parallel, precision_name, optimizer_name, options = case
    net = network.build(model, 3, 0)
    if options.get("checkpointing"):
        network.checkpoint_blocks(net, model)
    precision = PRECISIONS[precision_name]("cpu")
    groups = network.parameter_groups(net, 1e-3, False)
    optimizer = OPTIMIZERS[optimizer_name](groups, 0.01, 0.9, True)
    net, optimizer = precision.prepare(net, optimizer)
    ema = Ema.create(net, options.get("ema", 0.0))
    microbatches = shards if parallel == "elastic" else world.size
    parallel_model = PARALLELS[parallel](net, world, True, microbatches)
    totals = Totals.zero(world.device, microbatches)
    learner = Learner(net, nn.CrossEntropyLoss(), optimizer, precision, ema, options.get("clip", 0.0))
    rate = 1e-3 if optimizer_name == "adamw" else 0.01
    stream = batches(parallel_model.share, steps, images)
    for _ in loop.train(learner, parallel_model, stream, [rate] * steps, totals):
        pass
    sums = collectives.all_reduce_sum(totals.sums).sum(0)
    state = json.dumps(precision.state_dict(optimizer), sort_keys=True, default=str)
    return digest(net.parameters()), digest([*net.buffers(), *ema.averages, sums]) + state


def main() -> None:
    folder, (steps, shards, images), cases = Path(sys.argv[1]), map(int, sys.argv[2:5]), json.loads(sys.argv[5])
    determinism.make_deterministic(1, True)
    world = rendezvous.world_of(os.environ, "cpu")
    with group.join(world, 300):
        for case in cases:
            digests = collectives.all_gather_object(train(world, case, steps, shards, images))
            # ddp's statistics differ between processes
            assert len(set(digests)) == 1 or case[1] != "elastic", "the processes differ"
            if world.is_main:
                with (folder / str(world.size)).open("a") as table:
                    print(*digests[0], *case, sep="\t", file=table)


if __name__ == "__main__":
    main()
