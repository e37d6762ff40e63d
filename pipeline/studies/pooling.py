"""The predictions for the test images of all folds together: for every image, of a model that was not trained on it.

With several seeds there are several models for each image. The figures are means over seeds, and the interval is that
of the number of images: another seed adds no image. The confusion matrix has one prediction per image, from the mean of
its probabilities.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.base import elementary, schema
from pipeline.base.errors import Fault, UserError
from pipeline.evaluation import metrics, prediction_table
from pipeline.evaluation.figures import EvalFigures

RUN_AGAIN = "run the folds again (perennial folds)"
MIN_PROBABILITY = 5e-324  # the smallest float above 0; a probability of 0 in the table is a smaller number
LOGARITHM_FIGURES, DIGITS = ("nll", "ece"), 12  # the last bits of numpy's logarithms depend on the CPU


@dataclass(frozen=True)
class FoldPredictions:
    """The predictions for every image, of a model that was not trained on it, for one or more seeds."""

    classes: tuple[str, ...]
    paths: tuple[str, ...]  # N, sorted
    labels: NDArray[np.int64]  # [N], numbers of classes
    folds: NDArray[np.int64]  # [N], the fold whose model answered
    seeds: tuple[int, ...]  # S, in ascending order
    by_seed: NDArray[np.float64]  # [S, N, C], probabilities as in the tables

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """The mean over seeds of each image's probabilities [N, C]; of one seed, those of the table to the last bit."""
        total: NDArray[np.float64] = self.by_seed.sum(0)
        return total / len(self.seeds)

    @property
    def log_probs(self) -> NDArray[np.float64]:
        """The logarithms of all probabilities [S, N, C]. All are finite."""
        return elementary.log(np.maximum(self.by_seed, MIN_PROBABILITY))


@dataclass(frozen=True)
class Part:
    """The test images of one fold, with one seed."""

    seed: int
    fold: int
    images: int
    right: int

    @property
    def accuracy(self) -> float:
        return self.right / self.images


@dataclass(frozen=True)
class Spread:
    """The number of some accuracies, their mean, and their standard deviation (0 for one)."""

    count: int
    mean: float
    deviation: float


@dataclass(frozen=True)
class Figures(EvalFigures):
    """The figures of the predictions. Those of a seed are over all images; with several seeds they are means."""

    images: int
    accuracy_of_mean: float  # of the class with the highest mean probability over seeds
    over_folds: Spread  # the accuracies of `parts`
    over_seeds: Spread  # the accuracy over all images of each seed
    parts: tuple[Part, ...]  # by seed, then by fold


def read(tables: Mapping[tuple[int, int], Path], labels: Mapping[str, str]) -> FoldPredictions:
    """The predictions of every seed and fold: predictions.csv by (seed, fold). `labels`: image → class, of all images.

    Raises UserError for a table that is damaged or of other images, and if an image is not tested once with each seed.
    """
    paths, seeds = tuple(sorted(labels)), tuple(sorted({seed for seed, _ in tables}))
    names, numbers = np.unique([labels[path] for path in paths], return_inverse=True)
    classes, row_of = tuple(names.tolist()), {path: row for row, path in enumerate(paths)}
    probabilities = np.zeros((len(seeds), len(paths), len(classes)))
    folds, tests = np.zeros((2, len(seeds), len(paths)), np.int64)  # tests: how often an image was tested
    for (seed, fold), table in tables.items():
        k = seeds.index(seed)
        with schema.reading(table, RUN_AGAIN):
            for path, label, _, of_classes in prediction_table.read(table, classes):
                if labels.get(path) != label:
                    raise ValueError(f"{path} is not of class {label} in the split")
                row = row_of[path]
                probabilities[k, row], folds[k, row] = of_classes, fold
                tests[k, row] += 1
    is_wrong = ((tests != 1) | (folds != folds[0])).any(0)
    if is_wrong.any():
        value = "not a test image of one fold, the same with each seed"
        raise UserError(Fault(paths[int(is_wrong.argmax())], value, "differs", remedy=RUN_AGAIN))
    return FoldPredictions(classes, paths, numbers, folds[0], seeds, probabilities)


def figures(predictions: FoldPredictions) -> Figures:
    """All figures of the predictions."""
    images, correct = len(predictions.paths), predictions.by_seed.argmax(2) == predictions.labels
    masks = {int(fold): predictions.folds == fold for fold in np.unique(predictions.folds)}
    parts = tuple(
        Part(seed, fold, int(mask.sum()), int(seed_correct[mask].sum()))
        for seed, seed_correct in zip(predictions.seeds, correct, strict=True)
        for fold, mask in masks.items()
    )
    by_seed = [asdict(metrics.summary(log_probs, predictions.labels)) for log_probs in predictions.log_probs]
    mean = {key: math.fsum(seed_figures[key] for seed_figures in by_seed) / len(by_seed) for key in by_seed[0]}
    mean |= {key: round(mean[key], DIGITS) for key in LOGARITHM_FIGURES}
    right = int(correct.sum())
    low, high = metrics.wilson(right / len(by_seed), images)
    return Figures(
        images=images,
        **mean | {"accuracy": right / (len(by_seed) * images), "accuracy_low": low, "accuracy_high": high},
        accuracy_of_mean=int((predictions.probabilities.argmax(1) == predictions.labels).sum()) / images,
        over_folds=spread([part.accuracy for part in parts]),
        over_seeds=spread([int(seed_correct.sum()) / images for seed_correct in correct]),
        parts=parts,
    )


def spread(accuracies: Sequence[float]) -> Spread:
    """Mean and standard deviation of one accuracy or more."""
    deviation = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    return Spread(len(accuracies), statistics.fmean(accuracies), deviation)


def table(predictions: FoldPredictions) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Header and rows of a table with one answer per image: predictions.csv with a column for the fold."""
    probabilities = predictions.probabilities
    path_column, *others = prediction_table.columns(predictions.classes)
    header = (path_column, "fold", *others)
    folds, best_classes = predictions.folds.tolist(), probabilities.argmax(1)
    answers = zip(predictions.paths, folds, predictions.labels, best_classes, probabilities.tolist(), strict=True)
    return header, [
        (path, fold, predictions.classes[label], predictions.classes[best_class], *image_probabilities)
        for path, fold, label, best_class, image_probabilities in answers
    ]
