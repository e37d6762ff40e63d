"""How a trained model looks at pictures: the same few lines for validation, evaluation and prediction."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline import augment, reading, residency, sampling
from pipeline.engine import loop, world
from pipeline.engine.precision import Precision
from pipeline.engine.world import World
from pipeline.residency import Squares


@dataclass(frozen=True)
class View:
    """What a model sees of a picture; recorded in model.json. All in pixels."""

    square: reading.Side  # every picture is squeezed to square × square,
    resize: reading.Side  # then seen as if its short side were `resize`,
    crop: reading.Side  # and `crop` × `crop` cut from its centre


def logits(
    model: nn.Module,
    squares: Squares,
    sizes: NDArray[np.int32],
    rows: NDArray[np.int64],
    view: View,
    batch_size: int,
    place: World,
    precision: Precision,
) -> Tensor:
    """The logits float32 [len(rows), classes] of the given rows, in their order, on the CPU of every process.

    Batch k goes whole to process k mod size: what stands in a batch decides last bits [measured: 1e-6], so batches are
    the same for every number of processes, and so are the logits. The last one is short; nothing is padded.
    """
    count = -(-len(rows) // batch_size)
    mine = range(place.rank, count, place.size)

    def collected() -> Iterator[tuple[NDArray[np.int64], tuple[Tensor, Tensor]]]:
        for index in mine:
            chosen = rows[index * batch_size : (index + 1) * batch_size]
            yield chosen, squares.collect(chosen)

    def batches() -> Iterator[Tensor]:
        for chosen, shown in residency.ahead(collected(), squares.device):
            boxes = sampling.eval_boxes(sizes[chosen], view.square, view.resize, view.crop)
            with precision.exact():
                images = augment.crops(*squares.send(shown), boxes, np.zeros(len(chosen), np.bool_), view.crop)
            yield images

    found = list(loop.logits(model, batches(), precision))
    return torch.cat(world.collected(found, list(mine), count))
