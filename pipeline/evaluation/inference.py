"""How a trained model looks at images: the same few lines for validation, evaluation and prediction."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.base.errors import UserError
from pipeline.engine import distributed, loop
from pipeline.engine.choices import PRECISIONS
from pipeline.engine.precision import Precision, allow_tf32
from pipeline.engine.world import World
from pipeline.loader import augment, sampler, storage
from pipeline.loader.storage import ImageStore
from pipeline.models.exported import ExportedModel, View


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
        for chosen, shown in storage.ahead(collected(), image_store.device):
            boxes = sampler.eval_boxes(sizes[chosen], view.packed_size, view.resize, view.crop)
            with precision.exact():
                images = augment.crops(*image_store.send(shown), boxes, np.zeros(len(chosen), np.bool_), view.crop)
            yield images

    found = list(loop.logits(model, batches(), precision))
    return torch.cat(distributed.gather_in_order(found, list(mine), count))


def predict_log_probs(
    exported: ExportedModel,
    image_store: ImageStore,
    sizes: NDArray[np.int32],
    rows: NDArray[np.int64],
    *,
    batch_size: int,
    world: World,
) -> NDArray[np.float64]:
    """The log-probabilities [len(rows), classes] of the given rows (see `logits`), on every process.

    Always in fp32, whatever the model was trained with: the figures belong to the weights that are stored, which are
    fp32, and to whoever uses them. Raises UserError if one is not a number.
    """
    net, precision = exported.net.to(world.device), PRECISIONS["fp32"](world.device.type)
    allow_tf32(False)  # here no optimizer is there for `prepare`, which says so in training
    found_logits = logits(net, image_store, sizes, rows, exported.view, batch_size, world, precision)
    found: NDArray[np.float64] = torch.log_softmax(found_logits.double(), 1).numpy()
    if not np.isfinite(found).all():
        raise UserError("the model's answers are not finite numbers; train again with a lower train.lr (dvc repro)")
    return found
