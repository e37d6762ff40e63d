"""Compares metrics/predictions.csv with other answers: of the ONNX file, and with other libraries' preprocessing.

metrics/export.json has only what is the same on every kind of CPU: counts, and a limit instead of a difference.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.base import files, schema, threads
from pipeline.base.errors import Fault, UserError
from pipeline.data import images
from pipeline.data.originals import Originals
from pipeline.data.packed import Packed
from pipeline.loader import center
from pipeline.models.exported import ExportedModel, with_normalization
from pipeline.models.onnx_export import REMEDY
from pipeline.models.onnx_file import OnnxModel

# Two programs add in another order, and so round differently: probabilities in fp32 differ by about 1e-6 [measured].
NEAR = 1e-4  # two classes whose probabilities are closer are a tie; no class is then the right answer
LIMITS = (1e-4, 1e-2)  # the difference of probabilities is below the first or the second, or the export fails
MOST_NAMED = 5


@dataclass(frozen=True)
class Expected:
    """The rows of metrics/predictions.csv."""

    paths: tuple[str, ...]  # [n]
    labels: tuple[str, ...]  # [n]
    probabilities: NDArray[np.float64]  # [n, classes]

    @property
    def guesses(self) -> NDArray[np.int64]:
        """The index of the predicted class of each image, int64 [n]."""
        guesses: NDArray[np.int64] = self.probabilities.argmax(1)
        return guesses


def expected(predictions: Path, classes: Sequence[str]) -> Expected:
    """Read predictions.csv. Raises UserError if it is damaged."""
    with schema.reading(predictions, schema.checkout(predictions), KeyError):
        rows = files.read_csv(predictions)
        probabilities = np.array([[float(row[f"p_{name}"]) for name in classes] for row in rows])
        return Expected(tuple(row["path"] for row in rows), tuple(row["label"] for row in rows), probabilities)


def answers(model: OnnxModel, data: Packed, rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float64]:
    """The probabilities [n, classes] that ONNX gives for these rows [n] of the packed images."""
    view = model.view
    boxes = center.eval_boxes(data.sizes[rows], view.packed_size, view.resize, view.crop)
    parts = []
    for start in range(0, len(rows), batch_size):
        chosen = range(start, min(start + batch_size, len(rows)))
        pixels = np.stack([center.cut(data.images[rows[i]], boxes[i], view.crop) for i in chosen])
        parts.append(np.exp(model.log_probabilities(pixels)))
    return np.concatenate(parts)


def near_ties(wanted: Expected) -> NDArray[np.bool_]:
    """Whether the two most likely classes of each image are a tie, bool [n]."""
    best = np.sort(wanted.probabilities, 1)[:, -2:]
    return best[:, -1] - best[:, 0] < NEAR if best.shape[1] == 2 else np.zeros(len(best), bool)


def limit(wanted: Expected, found: NDArray[np.float64], classes: Sequence[str]) -> float:
    """The limit of LIMITS that no probability differs by. Raises UserError if there is none, or for a changed class."""
    guesses, theirs = wanted.guesses, found.argmax(1)
    changed = np.flatnonzero((guesses != theirs) & ~near_ties(wanted))
    if len(changed):
        named = "; ".join(
            f"{wanted.paths[i]}: {classes[theirs[i]]} ({found[i, theirs[i]]:.4f}) instead of "
            f"{classes[guesses[i]]} ({wanted.probabilities[i, guesses[i]]:.4f})"
            for i in changed[:MOST_NAMED]
        )
        more = f"; and {len(changed) - MOST_NAMED:,} more" if len(changed) > MOST_NAMED else ""
        value = f"another class for {len(changed):,} of {len(found):,} test images"
        raise UserError(Fault("model.onnx", value, "differs", f"{named}{more}", remedy=REMEDY))
    differences = np.abs(found - wanted.probabilities).max(1)
    worst = int(differences.argmax())
    for bound in LIMITS:
        if differences[worst] < bound:
            return bound
    value, allowed = f"a probability differs by {differences[worst]:.4f}", f"less than {LIMITS[-1]}"
    raise UserError(Fault("model.onnx", value, "differs", f"of {wanted.paths[worst]}", allowed, REMEDY))


def with_their_preprocessing(
    model: ExportedModel, source: Originals, wanted: Expected, workers: int, batch_size: int
) -> NDArray[np.int64]:
    """The guesses int64 [n] of the model, in torch, for originals that are resized and cut as other libraries do."""
    view, net = model.view, with_normalization(model.net)

    def load(path: str) -> NDArray[np.uint8]:
        file, sha256 = source.file(path)
        return images.center_of_resized(file, view.resize, view.crop, images.NO_LIMIT, view.grey, sha256)

    loaded = threads.ordered_map(load, wanted.paths, workers, "export", result_bytes=3 * view.crop**2)
    with torch.inference_mode():
        guesses = [net(torch.from_numpy(batch)).argmax(1).numpy() for batch in batches(loaded, batch_size)]
    return np.concatenate(guesses)


def batches(loaded: Iterator[NDArray[np.uint8]], size: int) -> Iterator[NDArray[np.float32]]:
    """Images [crop, crop, 3] as batches of pixels of 0 to 255 [n, 3, crop, crop]."""
    batch: list[NDArray[np.uint8]] = []
    for image in loaded:
        batch.append(image)
        if len(batch) == size:
            yield np.stack(batch).transpose(0, 3, 1, 2).astype(np.float32)
            batch = []
    if batch:
        yield np.stack(batch).transpose(0, 3, 1, 2).astype(np.float32)
