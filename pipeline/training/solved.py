"""A training without steps: the head is solved from the features that the stage `features` has written."""

import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.data import feature_file
from pipeline.engine import ridge
from pipeline.engine.loss import balanced_weights
from pipeline.models import network
from pipeline.training.job import Job
from pipeline.training.notes import training_facts
from pipeline.training.state import HISTORY, Progress, make_model


def solve(job: Job) -> tuple[dict[str, Tensor], Progress, int]:
    """The weights to export, a history of one row, and no steps, as `stages.train.train` returns them.

    Every process computes the same. Raises UserError if the features are missing, or are not those of the images.
    """
    config, data = job.config, job.dataset.packed
    model = make_model(config, data.classes, job.world)
    if job.world.is_main:
        print(*(f"train: {line}" for line in training_facts(job, model)), sep="\n", file=sys.stderr)
    features = feature_file.read(Path(config.paths.features), len(data.labels))
    train, val = data.rows("train"), data.rows("val")
    counts = data.counts("train")
    balanced = config.train.class_weights == "balanced"
    weights = np.array(balanced_weights(counts) if balanced else [1.0] * len(counts))
    head = ridge.solve(features[train], data.labels[train], weights, config.train.head_l2)
    head = ridge.calibrated(head, features[val], data.labels[val])
    last = network.head(model)
    assert isinstance(last, nn.Linear)  # the stage `features` refuses others
    last.load_state_dict({"weight": torch.from_numpy(head.weight).float(), "bias": torch.from_numpy(head.bias).float()})
    row = (
        1,
        0,
        0.0,
        *figures(head, features[train], data.labels[train]),
        *figures(head, features[val], data.labels[val]),
    )
    return network.export_state(model), Progress(0, [dict(zip(HISTORY, (*row, ""), strict=True))]), 0


def figures(head: ridge.Head, features: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[float, float]:
    """The mean loss and the accuracy of a head on features [n, d] with labels [n]."""
    log_probs = ridge.log_softmax(head.logits(features))
    loss = -log_probs[np.arange(len(labels)), labels].sum() / len(labels)
    return float(loss), int((log_probs.argmax(1) == labels).sum()) / len(labels)
