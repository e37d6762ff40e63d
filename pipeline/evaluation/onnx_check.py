"""Compares metrics/predictions.csv with the ONNX file.

metrics/export.json has only figures that are the same on every CPU: counts, and a limit instead of a difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from pipeline.base import elementary, schema
from pipeline.base.errors import Fault, UserError
from pipeline.dataset.packed import Packed
from pipeline.evaluation import prediction_table
from pipeline.evaluation.onnx_export import REMEDY
from pipeline.evaluation.onnx_file import OnnxModel
from pipeline.loader import center

# Two programs sum in another order, and so round differently: probabilities in fp32 differ by about 1e-6 [measured].
NEAR = 1e-4  # two classes whose probabilities are closer are a tie; either class is accepted
LIMITS = (1e-4, 1e-2)  # the difference of probabilities is below the first or the second, or the export fails
MAX_NAMES = 5


@dataclass(frozen=True)
class Predictions:
    """The rows of metrics/predictions.csv."""

    paths: tuple[str, ...]  # [n]
    probabilities: NDArray[np.float64]  # [n, classes]

    @property
    def best_classes(self) -> NDArray[np.int64]:
        """The index of the predicted class of each image, int64 [n]."""
        guesses: NDArray[np.int64] = self.probabilities.argmax(1)
        return guesses


def read_predictions(path: Path, classes: Sequence[str]) -> Predictions:
    """The content of predictions.csv. Raises UserError if it is damaged."""
    with schema.reading(path, schema.checkout(path)):
        rows = list(prediction_table.read(path, classes))
        probabilities = np.array([row.probabilities for row in rows]).reshape(len(rows), len(classes))
        return Predictions(tuple(row.path for row in rows), probabilities)


def onnx_probabilities(model: OnnxModel, data: Packed, rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float64]:
    """The probabilities [n, classes] that ONNX gives for these rows [n] of the packed images."""
    view = model.view
    boxes = center.eval_boxes(data.sizes[rows], view.packed_size, view.resize, view.crop)
    parts = []
    for start in tqdm(range(0, len(rows), batch_size), "export: onnxruntime", unit=" batches", disable=None):
        batch = range(start, min(start + batch_size, len(rows)))
        pixels = np.stack([center.cut(data.images[rows[i]], boxes[i], view.crop) for i in batch])
        parts.append(elementary.exp(model.log_probabilities(pixels)))
    return np.concatenate(parts)


def near_ties(predictions: Predictions) -> NDArray[np.bool_]:
    """Whether the two most likely classes of each image are a tie, bool [n]."""
    best = np.sort(predictions.probabilities, 1)[:, -2:]
    return best[:, -1] - best[:, 0] < NEAR if best.shape[1] == 2 else np.zeros(len(best), bool)


def limit(predictions: Predictions, probabilities: NDArray[np.float64], classes: Sequence[str]) -> float:
    """The entry of LIMITS above all differences of probabilities. Raises UserError if none is, or for another class."""
    expected_classes, onnx_classes = predictions.best_classes, probabilities.argmax(1)
    differing = np.flatnonzero((expected_classes != onnx_classes) & ~near_ties(predictions))
    if len(differing):
        examples = "; ".join(
            f"{predictions.paths[i]}: {classes[onnx_classes[i]]} ({probabilities[i, onnx_classes[i]]:.4f}) instead of "
            f"{classes[expected_classes[i]]} ({predictions.probabilities[i, expected_classes[i]]:.4f})"
            for i in differing[:MAX_NAMES]
        )
        more = f"; and {len(differing) - MAX_NAMES:,} more" if len(differing) > MAX_NAMES else ""
        value = f"another class for {len(differing):,} of {len(probabilities):,} test images"
        raise UserError(Fault("model.onnx", value, "differs", f"{examples}{more}", remedy=REMEDY))
    differences = np.abs(probabilities - predictions.probabilities).max(1)
    worst = int(differences.argmax())
    for bound in LIMITS:
        if differences[worst] < bound:
            return bound
    value, allowed = f"a probability differs by {differences[worst]:.4f}", f"less than {LIMITS[-1]}"
    raise UserError(Fault("model.onnx", value, "differs", f"of {predictions.paths[worst]}", allowed, REMEDY))
