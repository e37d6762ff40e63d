"""Logits of images: the same function for validation, evaluation and prediction."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from pipeline.base.errors import Fault, UserError
from pipeline.learning import collectives, loop
from pipeline.learning.choices import PRECISIONS
from pipeline.learning.precision import allow_tf32
from pipeline.learning.world import World
from pipeline.loader.batches import CenterCrops, eval_batches
from pipeline.loader.storage import ImageStore
from pipeline.models.exported import ExportedModel, center_crops


def logits(
    compute: Callable[[Iterable[Tensor]], Iterator[Tensor]],
    images: ImageStore,
    crops: CenterCrops,
    batch_size: int,
    world: World,
) -> Tensor:
    """The logits float32 [n, classes] of n crops, in their order, on the CPU of every process.

    `compute` returns the logits of each batch of images: `loop.logits` of a model, or `Learner.logits`.
    Process k mod size computes batch k. All batches have the same number of images, which alone decides the last bits
    of an image's logits [measured: 1e-6]: they do not depend on the other images, nor on the number of processes. The
    logits of the crops that fill up the last batch are dropped.
    """
    batches = crops.batches(batch_size)
    indices = range(world.rank, len(batches), world.size)
    batch_logits = list(compute(eval_batches(images, [batches[index] for index in indices])))
    return torch.cat(collectives.gather_in_order(batch_logits, list(indices), len(batches)))[: len(crops.rows)]


@contextmanager
def progress(net: nn.Module, name: str, batches: int, world: World) -> Iterator[None]:
    """A block in which the main process shows on a terminal how many of its batches the model has computed."""
    with tqdm(desc=name, total=batches, unit=" batches", disable=None if world.is_main else True) as bar:

        def count(*_: object) -> None:
            bar.update()

        hook = net.register_forward_hook(count)
        yield
        hook.remove()


def predict_logits(
    exported: ExportedModel,
    images: ImageStore,
    sizes: NDArray[np.int32],
    rows: NDArray[np.int64],
    *,
    batch_size: int,
    world: World,
) -> NDArray[np.float64]:
    """The logits [n, classes] of the given rows [n], on every process.

    `sizes` [N, 2] are the original widths and heights of all images. The precision is always fp32, whatever the model
    was trained with: the metrics then belong to the exported weights, which are fp32.
    Raises UserError if a logit is not finite.
    """
    net, precision = exported.net.to(world.device), PRECISIONS["fp32"](world.device.type)
    allow_tf32(False)  # in training, `precision.prepare` sets it
    crops = center_crops(exported.view, sizes, rows, exported.normalization)
    outputs = logits(partial(loop.logits, net, precision=precision), images, crops, batch_size, world)
    if not outputs.isfinite().all():
        value, remedy = "not finite numbers", "train again with a lower train.lr (perennial repro)"
        raise UserError(Fault("the model's outputs", value, "damaged", remedy=remedy))
    result: NDArray[np.float64] = outputs.double().numpy()
    return result


def image_logits(
    exported: ExportedModel, pixels: NDArray[np.uint8], size: tuple[int, int], world: World
) -> NDArray[np.float64]:
    """The logits [1, classes] of a packed image [S, S, 3], which stands for one of this width and height.

    Raises UserError if a logit is not finite.
    """
    store = ImageStore(torch.from_numpy(np.stack([pixels])), world.device)
    sizes, row = np.array([size], np.int32), np.zeros(1, np.int64)
    return predict_logits(exported, store, sizes, row, batch_size=1, world=world)
