"""How a trained model looks at images: the same few lines for validation, evaluation and prediction."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline import augment, reading, residency, sampling
from pipeline.engine import distributed, loop
from pipeline.engine.distributed import World
from pipeline.engine.precision import Precision
from pipeline.residency import ImageStore


@dataclass(frozen=True)
class View:
    """What a model sees of an image; recorded in model.json. All in pixels."""

    packed_size: reading.Side  # every image is resized to packed_size × packed_size,
    resize: reading.Side  # then seen as if its short side were `resize`,
    crop: reading.Side  # and `crop` × `crop` cut from its centre


def logits(
    model: nn.Module,
    image_store: ImageStore,
    sizes: NDArray[np.int32],
    rows: NDArray[np.int64],
    view: View,
    batch_size: int,
    world: World,
    precision: Precision,
) -> Tensor:
    """The logits float32 [len(rows), classes] of the given rows, in their order, on the CPU of every process.

    Batch k goes whole to process k mod size: what stands in a batch decides last bits [measured: 1e-6], so batches are
    the same for every number of processes, and so are the logits. The last one is short; nothing is padded.
    """
    count = -(-len(rows) // batch_size)
    mine = range(world.rank, count, world.size)

    def collected() -> Iterator[tuple[NDArray[np.int64], tuple[Tensor, Tensor]]]:
        for index in mine:
            chosen = rows[index * batch_size : (index + 1) * batch_size]
            yield chosen, image_store.collect(chosen)

    def batches() -> Iterator[Tensor]:
        for chosen, shown in residency.ahead(collected(), image_store.device):
            boxes = sampling.eval_boxes(sizes[chosen], view.packed_size, view.resize, view.crop)
            with precision.exact():
                images = augment.crops(*image_store.send(shown), boxes, np.zeros(len(chosen), np.bool_), view.crop)
            yield images

    found = list(loop.logits(model, batches(), precision))
    return torch.cat(distributed.gather_in_order(found, list(mine), count))
