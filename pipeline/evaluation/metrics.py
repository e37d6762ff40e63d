"""The figures of a classifier, from one matrix of log-probabilities and the labels, in float64; McNemar's test.

The inputs are log-probabilities, so that the log-likelihood stays finite for an image of which the model is sure and
wrong. Totals are summed and divided once; 0 / 0 is 0, as in scikit-learn with `zero_division=0`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.base import elementary
from pipeline.evaluation.figures import EvalFigures

Z = 1.959963984540054  # a standard normal variable lies within ±Z with probability 95 %
LEVEL = 0.05  # of significance
BINS = 15  # of the calibration, as in the paper


@dataclass(frozen=True)
class Bin:
    """The images whose confidence (the highest probability) lies in (low, high]."""

    low: float
    high: float
    count: int
    confidence: float  # mean
    accuracy: float


@dataclass(frozen=True)
class ClassFigures:
    """A row of per_class.csv."""

    name: str
    images: int  # of this class
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Share:
    """The number of images, of those with a property (a mean, if several models answer), and the 95 % interval."""

    images: int
    count: float
    low: float
    high: float

    @property
    def share(self) -> float:
        """The part of the images that has the property."""
        return self.count / max(self.images, 1)


@dataclass(frozen=True)
class Comparison:
    """Two models on the same images."""

    images: int
    first_alone: int  # images that only the first model predicts right
    second_alone: int
    p: float

    @property
    def points(self) -> float:
        """How much higher the accuracy of the second model is, in percentage points."""
        return 100 * (self.second_alone - self.first_alone) / self.images

    @property
    def is_significant(self) -> bool:
        """Whether the null hypothesis (equal accuracy) is rejected at LEVEL."""
        return self.p < LEVEL


# The figures of eval.json besides the accuracy → title and meaning, for every page, table and line.
FIGURES = {
    "balanced_accuracy": (
        "balanced accuracy",
        "the mean over classes: each counts the same, however many images it has",
    ),
    "macro_f1": ("macro F1", "the mean F1 of the classes"),
    "nll": ("negative log-likelihood", "punishes confident mistakes; 0 is perfect"),
    "ece": ("calibration error", "how far its probabilities are from how often it is right; 0 is perfect"),
}


def titled(figures: EvalFigures, digits: int) -> list[tuple[str, str]]:
    """The title and the value of each of FIGURES."""
    return [(title, f"{getattr(figures, name):.{digits}f}") for name, (title, _) in FIGURES.items()]


def summary(log_probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> EvalFigures:
    """The figures of eval.json, from log-probabilities [n, classes] and labels [n], n >= 1."""
    counts = confusion(log_probabilities.argmax(1), labels, log_probabilities.shape[1])
    right, total = int(counts.trace()), len(labels)
    low, high = wilson(right, total)
    return EvalFigures(
        accuracy=right / total,
        accuracy_low=low,
        accuracy_high=high,
        balanced_accuracy=balanced_accuracy(counts),
        macro_f1=float(per_class(counts)[2].mean()),
        nll=float(-log_probabilities[np.arange(total), labels].sum() / total),
        ece=calibration_error(calibration(log_probabilities, labels)),
    )


def class_table(counts: NDArray[np.int64], classes: Sequence[str]) -> list[ClassFigures]:
    """One row per class, from the confusion counts."""
    precision, recall, f1 = per_class(counts)
    columns = zip(classes, counts.sum(1).tolist(), precision.tolist(), recall.tolist(), f1.tolist(), strict=True)
    return [ClassFigures(*row) for row in columns]


def wilson(right: float, total: int) -> tuple[float, float]:
    """The 95 % score interval of a share [Wilson 1927]: every p within Z standard errors √(p(1-p)/total) of it.

    `right` may be the mean of several counts.
    """
    return _wilson_low(right, total), 1 - _wilson_low(total - right, total)


def share(count: float, images: int) -> Share:
    """The share of a count in a number of images, one or more."""
    return Share(images, count, *wilson(count, images))


def confusion(predictions: NDArray[np.int64], labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """The number of images of class i (row) that are predicted as class j (column): int64 [classes, classes]."""
    return np.bincount(labels * classes + predictions, minlength=classes * classes).reshape(classes, classes)


def per_class(
    counts: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Precision, recall and F1 of every class from the confusion counts, float64 [classes] each."""
    right, labels, predictions = counts.diagonal(), counts.sum(1), counts.sum(0)
    return _share(right, predictions), _share(right, labels), _share(2 * right, labels + predictions)


def balanced_accuracy(counts: NDArray[np.int64]) -> float:
    """The mean recall of the classes that have an image."""
    images = counts.sum(1)
    return float(_share(counts.diagonal(), images)[images > 0].mean())


def calibration(log_probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> list[Bin]:
    """The calibration table: BINS bins of equal width over (0, 1], without the empty ones [Guo et al. 2017]."""
    confidence = elementary.exp(log_probabilities.max(1))
    right = log_probabilities.argmax(1) == labels
    # The clip is for rounding: a probability is in (0, 1].
    index = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    counts, confidences, hits = (np.bincount(index, weights, BINS) for weights in (None, confidence, right))
    return [
        Bin(k / BINS, (k + 1) / BINS, int(count), float(confidences[k] / count), float(hits[k] / count))
        for k, count in enumerate(counts)
        if count > 0
    ]


def calibration_error(table: Sequence[Bin]) -> float:
    """The expected calibration error: the mean distance of confidence and accuracy over images [Guo et al. 2017]."""
    return sum(row.count * abs(row.confidence - row.accuracy) for row in table) / sum(row.count for row in table)


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> Comparison:
    """McNemar's exact test of two models, from the images, one or more, that each predicts right [McNemar 1947].

    Under the null hypothesis each image that only one model has right favours either model with probability 1/2: a
    two-sided binomial test.
    """
    from scipy.stats import binomtest  # this import takes 0.7 s, and no stage compares

    first_alone = sum(a and not b for a, b in zip(first, second, strict=True))
    second_alone = sum(b and not a for a, b in zip(first, second, strict=True))
    discordant = first_alone + second_alone
    p = float(binomtest(first_alone, discordant).pvalue) if discordant else 1.0
    return Comparison(len(first), first_alone, second_alone, p)


def coverage_interval(images: int, rank: int) -> tuple[float, float]:
    """The 95 % interval of the coverage of a conformal limit, the score with this rank of so many images, rank >= 1.

    The coverage has the distribution Beta(n + 1 - rank, rank) [Vovk 2012].
    """
    from scipy.stats import beta  # as above

    low, high = beta.ppf((0.025, 0.975), images + 1 - rank, rank)
    return float(low), float(high)


def auroc(scores: NDArray[np.float64], is_known: NDArray[np.bool_]) -> float:
    """The probability that a known image has a higher score than another one; equal scores count half."""
    from scipy.stats import rankdata  # as above

    known, others = int(is_known.sum()), int((~is_known).sum())
    ranks = rankdata(scores)[is_known].sum()
    return float((ranks - known * (known + 1) / 2) / (known * others))


def _wilson_low(right: float, total: int) -> float:
    """The lower end of the interval; exactly 0 if `right` is 0."""
    share, z2n = right / total, Z * Z / total
    return (share + z2n / 2 - math.sqrt(z2n * (share * (1 - share) + z2n / 4))) / (1 + z2n)


def _share(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    """part / whole; 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
