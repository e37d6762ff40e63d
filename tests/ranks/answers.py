"""The answers of an untrained model for 50 images, in several orders and numbers: one process of several.

    python -m tests.ranks.answers MODEL CROP FOLDER     with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT

The main process prints the SHA-256 of the logits of each case as JSON: of the same images, in the same order.
"""

import hashlib
import json
import os
import sys

import numpy as np
import torch

from pipeline.dataset.normalization import IMAGENET
from pipeline.learning import determinism, inference
from pipeline.learning.choices import PRECISIONS
from pipeline.loader.storage import ImageStore
from pipeline.models import network
from pipeline.models.description import View
from pipeline.models.exported import center_crops
from pipeline.running import group, rendezvous

IMAGES, BATCH = 50, 16


def main(model: str, crop: str) -> None:
    determinism.make_deterministic(1, deterministic=True)
    world, side = rendezvous.world_of(dict(os.environ), "cpu"), int(crop)
    net, random = network.build(model, 5, seed=0), np.random.default_rng(0)
    store = ImageStore(torch.from_numpy(random.integers(0, 256, (IMAGES, side, side, 3), np.uint8)), world.device)
    view, sizes = View(side, side, side), np.full((IMAGES, 2), side, np.int32)
    orders = {
        "as they are": np.arange(IMAGES),
        "another order": random.permutation(IMAGES),
        "with seven times one": np.concatenate([np.arange(IMAGES), np.full(7, 3)]),
    }
    groups = {name: [order] for name, order in orders.items()}
    groups["alone, two, and the others"] = [np.arange(1), np.arange(1, 3), np.arange(3, IMAGES)]
    results = {}
    with group.join(world, 60, "auto"):
        for name, rows in groups.items():
            parts = [
                inference.logits(net, store, crops, BATCH, world, PRECISIONS["fp32"]("cpu"))
                for crops in (center_crops(view, sizes, part, IMAGENET) for part in rows)
            ]
            by_image = torch.empty(IMAGES, 5)
            by_image[torch.from_numpy(np.concatenate(rows))] = torch.cat(parts)
            results[name] = hashlib.sha256(by_image.numpy().tobytes()).hexdigest()
    if world.is_main:
        print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
