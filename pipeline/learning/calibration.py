"""The temperature of a model that gradients have trained: fitted to the validation images, folded into the head."""

import sys

from torch import Tensor

from pipeline.learning import inference, temperature
from pipeline.learning.task import Task
from pipeline.models import network
from pipeline.models.description import View
from pipeline.models.exported import ExportedModel


def fold_in(task: Task, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model whose logits are those of `weights`, divided by the temperature.

    All processes call this: they compute the logits of the validation images together, in fp32 as `evaluate` does.
    Raises UserError if a logit is not finite.
    """
    config, data = task.config, task.dataset.packed
    net = network.build(config.train.model, len(data.classes), seed=0)
    network.load_model_state(net, weights)
    model = ExportedModel(net, data.classes, View.from_params(config), task.dataset.normalization)
    rows, size = data.rows("val"), config.evaluate.batch_size
    logits = inference.predict_logits(model, task.dataset.images, data.sizes, rows, batch_size=size, world=task.world)
    labels = data.labels[rows]
    factor = temperature.factor(logits, labels)
    if task.world.is_main:
        before, after = (temperature.figures(values, labels)[0] for values in (logits, logits * factor))
        print(
            f"train: temperature {1 / factor:.3g}, folded into the head: validation loss {before:.4f} → {after:.4f}",
            file=sys.stderr,
        )
    of_head = f"{network.head_name(net)}."
    return {name: value * factor if name.startswith(of_head) else value for name, value in weights.items()}
