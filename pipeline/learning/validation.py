"""The end of an epoch: validation, the epoch's row in the history, the best weights."""

from contextlib import nullcontext

import torch
from torch import nn

from pipeline.learning import collectives, inference, schedule
from pipeline.learning.loop import Learner, Totals
from pipeline.learning.readout import Reading
from pipeline.learning.state import HISTORY, Progress, export_weights
from pipeline.learning.task import Task
from pipeline.models.description import View
from pipeline.models.exported import center_crops


def validate(task: Task, learner: Learner) -> tuple[float, float]:
    """The mean loss (without label smoothing) and the accuracy over the validation split, in float64.

    They are those of the weights that would be exported: with `train.export: ema`, of the moving average.
    """
    config, data = task.config, task.dataset.packed
    rows, ema = data.rows("val"), config.train.export == "ema"
    crops = center_crops(View.from_params(config), data.sizes, rows, task.dataset.normalization)
    with learner.ema.swap() if ema else nullcontext():
        collectives.broadcast_buffers(learner.model)
        logits = inference.logits(
            learner.logits, task.dataset.images, crops, config.evaluate.batch_size, task.world
        ).double()
    learner.precision.weights_changed()
    labels = torch.from_numpy(data.labels[rows])
    loss = nn.functional.cross_entropy(logits, labels, reduction="sum").item() / len(rows)
    return loss, int((logits.argmax(1) == labels).sum()) / len(rows)


def end_epoch(
    task: Task, learner: Learner, totals: Totals, progress: Progress, learning_rate: float, reading: Reading
) -> None:
    """Validate, add the epoch's row to the history, remember the best weights, and set the totals to zero.

    `reading`: the values at the epoch's last step.
    """
    settings, epoch = task.config.train, len(progress.history) + 1
    loss, correct, images = reading.of_all
    val_loss, val_accuracy = validate(task, learner)
    row = (epoch, progress.step, learning_rate, loss / images, correct / images, val_loss, val_accuracy, "")
    progress.history.append(dict(zip(HISTORY, row, strict=True)))
    if settings.export == "best" and schedule.best_epoch(progress.history) == epoch:
        progress.best_weights = export_weights(learner, settings)
    totals.sums.zero_()
