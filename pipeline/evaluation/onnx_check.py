"""Compares metrics/predictions.csv with the ONNX file.

metrics/export.json has only figures that are the same on every CPU: counts, and a limit instead of a difference.
"""

from collections.abc import Sequence
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


def read_predictions(path: Path, classes: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """The paths [n] and the probabilities [n, classes] of predictions.csv. Raises UserError if it is damaged."""
    with schema.reading(path, schema.checkout(path)):
        rows = list(prediction_table.read(path, classes))
        probabilities = np.array([row.probabilities for row in rows]).reshape(len(rows), len(classes))
        return tuple(row.path for row in rows), probabilities


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


def near_ties(probabilities: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether the two most likely classes of each image are a tie, bool [n]."""
    best = np.sort(probabilities, 1)[:, -2:]
    return best[:, -1] - best[:, 0] < NEAR if best.shape[1] == 2 else np.zeros(len(best), bool)


def limit(
    paths: Sequence[str], of_torch: NDArray[np.float64], of_onnx: NDArray[np.float64], classes: Sequence[str]
) -> float:
    """The entry of LIMITS above all differences of probabilities. Raises UserError if none is, or for another class."""
    torch_classes, onnx_classes = of_torch.argmax(1), of_onnx.argmax(1)
    differing = np.flatnonzero((torch_classes != onnx_classes) & ~near_ties(of_torch))
    if len(differing):
        examples = "; ".join(
            f"{paths[i]}: {classes[onnx_classes[i]]} ({of_onnx[i, onnx_classes[i]]:.4f}) instead of "
            f"{classes[torch_classes[i]]} ({of_torch[i, torch_classes[i]]:.4f})"
            for i in differing[:MAX_NAMES]
        )
        more = f"; and {len(differing) - MAX_NAMES:,} more" if len(differing) > MAX_NAMES else ""
        value = f"another class for {len(differing):,} of {len(of_onnx):,} test images"
        raise UserError(Fault("model.onnx", value, "differs", f"{examples}{more}", remedy=REMEDY))
    differences = np.abs(of_onnx - of_torch).max(1)
    worst = int(differences.argmax())
    for bound in LIMITS:
        if differences[worst] < bound:
            return bound
    value, allowed = f"a probability differs by {differences[worst]:.4f}", f"less than {LIMITS[-1]}"
    raise UserError(Fault("model.onnx", value, "differs", f"of {paths[worst]}", allowed, REMEDY))
