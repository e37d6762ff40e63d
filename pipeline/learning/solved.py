"""A head that is solved from the features that the stage `features` has written: the whole training, or its beginning.

With a frozen backbone the solution is the model. Otherwise gradients train all layers from there.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.config.model_names import EXACT_MODELS
from pipeline.dataset import feature_file
from pipeline.learning import ridge, temperature
from pipeline.learning.loss import balanced_weights
from pipeline.learning.state import HISTORY, Progress
from pipeline.learning.task import Task
from pipeline.models import network


def solve(task: Task, model: nn.Module) -> tuple[dict[str, Tensor], Progress, int]:
    """The weights to export, a history of one row, and no steps, as `stages.train.train` returns them.

    Every process computes the same. Raises UserError as `begin` does.
    """
    row = (1, 0, 0.0, *_load(task, model), "")
    return network.export_state(model), Progress(0, [dict(zip(HISTORY, row, strict=True))]), 0


def begin(task: Task, model: nn.Module) -> None:
    """Load the solved head into a model, which is trained from there. Every process computes the same.

    Raises UserError if the features are missing, or are not those of the images.
    """
    *_, loss, accuracy = _load(task, model)
    if task.world.is_main:
        print(
            f"train: before the first step, with the head solved: validation accuracy {accuracy:.4f}, loss {loss:.4f}",
            file=sys.stderr,
        )


def _load(task: Task, model: nn.Module) -> tuple[float, float, float, float]:
    """Solve the head, and load it. Returns loss and accuracy of the training images, then of the validation images."""
    config, data = task.config, task.dataset.packed
    features = feature_file.read(Path(config.paths.features), len(data.labels))
    train, val = data.rows("train"), data.rows("val")
    counts = data.counts("train")
    balanced = config.train.class_weights == "balanced"
    weights = np.array(balanced_weights(counts) if balanced else [1.0] * len(counts))
    grid = ridge.Head.on_grid if config.train.model in EXACT_MODELS else _as_it_is
    head = grid(ridge.solve(features[train], data.labels[train], weights, config.train.head_l2))
    head = grid(head.sharper(temperature.factor(head.logits(features[val]), data.labels[val])))
    last = network.head(model)
    assert isinstance(last, nn.Linear)  # the stage `features` refuses others
    last.load_state_dict({"weight": torch.from_numpy(head.weight).float(), "bias": torch.from_numpy(head.bias).float()})
    of_train, of_val = (temperature.figures(head.logits(features[rows]), data.labels[rows]) for rows in (train, val))
    return *of_train, *of_val


def _as_it_is(head: ridge.Head) -> ridge.Head:
    return head
