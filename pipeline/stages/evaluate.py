"""Measure the trained model on the test images: one of the processes that `pipeline.running.launch` starts.

    perennial evaluate       starts run.processes of it, as params.yaml says

Reads models/ and the packed test rows. Writes metrics/eval.json, and metrics/*.csv (per_class, confusion, calibration,
predictions): the same bytes for every number of processes. Every test image is counted once. From validation images it
writes models/acceptance.json, by which `predict` says that an image is none of the classes.
"""

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.base import elementary, files
from pipeline.base.errors import Fault, UserError, missing
from pipeline.base.text import visible
from pipeline.config.params import Params
from pipeline.dataset.packed import Packed
from pipeline.evaluation import acceptance, figures, metrics, prediction_table
from pipeline.evaluation.figures import EvalFigures
from pipeline.evaluation.metrics import ClassFigures
from pipeline.evaluation.prediction_table import Prediction
from pipeline.learning import determinism, inference
from pipeline.learning.world import World
from pipeline.loader import storage
from pipeline.models import exact, exported
from pipeline.models.exported import ExportedModel
from pipeline.running import agreement, group, pixels, provenance, rendezvous, terminal


def check_model_fits_data(config: Params, model: ExportedModel, data: Packed) -> None:
    """Raise UserError if the model was not trained on images packed like these."""
    model_file, packed_size = f"{config.paths.models}/model.json", data.size
    if model.classes != data.classes:
        value = f"its classes are {', '.join(model.classes)}"
        reason = f"those of {config.paths.split} are {', '.join(data.classes)}"
        raise UserError(Fault(model_file, value, "differs", reason, remedy="train again (perennial repro)"))
    if (model.view.packed_size, model.view.fit) != (packed_size, data.fit):
        value = f"made for packed images of {model.view.packed_size} pixels, prepare.fit: {model.view.fit}"
        reason = f"{config.paths.packed} has {packed_size} pixels, prepare.fit: {data.fit}"
        remedy = "perennial repro --force --single-item train"
        raise UserError(Fault(model_file, value, "differs", reason, remedy=f"train again ({remedy})"))


def write(config: Params, data: Packed, rows: NDArray[np.int64], log_probs: NDArray[np.float64]) -> str:
    """Write the stage's outputs from the log-probabilities [len(rows), classes]. Returns the figures as a table."""
    folder, classes, labels = Path(config.paths.metrics), data.classes, data.labels[rows]
    guesses, test_figures = log_probs.argmax(1), metrics.summary(log_probs, labels)
    by_class = metrics.class_table(metrics.confusion(guesses, labels, len(classes)), classes)
    figures.write(folder, test_figures)
    files.write_csv(folder / figures.CLASSES, ("class", "images", "precision", "recall", "f1"), map(astuple, by_class))
    pairs = [(classes[label], classes[guess]) for label, guess in zip(labels, guesses, strict=True)]
    # One row per image: DVC's template `confusion` counts the rows of each pair itself.
    files.write_csv(folder / "confusion.csv", ("actual", "predicted"), pairs)
    files.write_csv(
        folder / "calibration.csv",
        ("low", "high", "count", "confidence", "accuracy"),
        map(astuple, metrics.calibration(log_probs, labels)),
    )
    answers = zip(rows, pairs, elementary.exp(log_probs).tolist(), strict=True)
    predictions = (Prediction(data.paths[row], *pair, probabilities) for row, pair, probabilities in answers)
    prediction_table.write(folder / figures.PREDICTIONS, classes, predictions)
    return table(test_figures, by_class)


def acceptance_rows(data: Packed) -> NDArray[np.int64]:
    """The rows of the validation images whose scores acceptance.json has, ascending.

    Of more than MOST_IMAGES these are the first by the hash of their path: an arbitrary choice that never changes.
    """
    order = sorted(data.rows("val").tolist(), key=lambda row: hashlib.sha256(data.paths[row].encode()).digest())
    return np.array(sorted(order[: acceptance.MOST_IMAGES]), np.int64)


def write_acceptance(config: Params, weights: str, log_probs: NDArray[np.float64]) -> None:
    """Write acceptance.json from the log-probabilities [images, classes] of validation images.

    `weights`: SHA-256 of the model.
    """
    highest = elementary.exp(log_probs).max(1).tolist()
    content = acceptance.make(weights, config.evaluate.coverage, highest, log_probs.shape[1])
    acceptance.write(Path(config.paths.models), content)


def table(test_figures: EvalFigures, by_class: Sequence[ClassFigures]) -> str:
    """The figures of eval.json and per_class.csv as a table to be read."""
    head = ("class", "precision", "recall", "f1", "images")
    rows = [
        (visible(row.name), f"{row.precision:.3f}", f"{row.recall:.3f}", f"{row.f1:.3f}", f"{row.images:6,}")
        for row in by_class
    ]
    low, high = test_figures.accuracy_low, test_figures.accuracy_high
    texts = [
        f"test accuracy {test_figures.accuracy:.3f} (95 %: {low:.3f} to {high:.3f})",
        *(f"{title} {value}" for title, value in metrics.titled(test_figures, 3)),
        f"{sum(row.images for row in by_class)} test images",
    ]
    return "\n".join([*terminal.columns([head, *rows]), ", ".join(texts)])


def ready(config: Params, world: World) -> tuple[Packed, NDArray[np.int64], ExportedModel]:
    """The packed images, the rows of the test split, and the model. Raises UserError if they do not fit together."""
    data = pixels.open_for(config, world.local_rank == 0)
    rows = data.rows("test")
    if len(rows) == 0:
        raise missing(config.paths.split, "raise split.fractions.test, then perennial repro", "no test image")
    model = exported.load(Path(config.paths.models))
    check_model_fits_data(config, model, data)
    return data, rows, model


def run(config: Params) -> None:
    """Run one process of the evaluation. The main process writes the stage's outputs and prints the figures.

    Raises UserError if model, data and params do not fit together.
    """
    determinism.make_deterministic(config.train.threads, config.train.deterministic)
    world = rendezvous.world_of(os.environ, config.train.device)
    meeting = rendezvous.connect_store(world, config.run.timeout_seconds)
    with agreement.compare_facts(meeting, world) as facts:
        data, rows, model = ready(config, world)
        # They are of one machine and one launcher, so they have the same files; its GPUs may be of different kinds.
        facts["let evaluate see devices of one kind (CUDA_VISIBLE_DEVICES), then run again"] = provenance.hardware(
            world, config.train.threads, model.arithmetic
        )
    exact.check_device(model.net.to(world.device), model.view.crop, world.device)
    with group.process_group(world, config.train.backend, config.run.timeout_seconds, meeting):
        image_store, _ = storage.open_images(data, config.run, world.device)
        batch_size, others = config.evaluate.batch_size, acceptance_rows(data)
        all_rows = np.concatenate([rows, others])
        with inference.progress(model.net, "evaluate", math.ceil(len(all_rows) / (batch_size * world.size)), world):
            logits = inference.predict_logits(
                model, image_store, data.sizes, all_rows, batch_size=batch_size, world=world
            )
    if world.is_main:
        log_probs = elementary.log_softmax(logits)
        write_acceptance(config, model.weights, log_probs[len(rows) :])
        print(write(config, data, rows, log_probs[: len(rows)]))
        print(f"evaluate: figures in {config.paths.metrics}/")
