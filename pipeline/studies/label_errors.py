"""Images that probably have a wrong label, by confident learning [Northcutt, Jiang, Chuang 2021, JAIR 70, 1373-1411].

The probabilities must be of models that were not trained on the image. The threshold of a class is the mean probability
of this class over the images with its label. An image is a probable label error if the probability of another class is
at least the threshold of that class, and the class of its label is not the most likely one.

The images are sorted by the normalized margin, the lead of the most likely class over the label. docs/label-errors.md
says what is left out of the paper, and why. cleanlab is the oracle in the tests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# As cleanlab has them, so that the findings are the same.
TOLERANCE = 1e-6  # of equal probabilities
LOWEST = 2 * TOLERANCE  # threshold: no class is sure of everything
DIGITS = 6  # of a figure in the table
MOST_SHARE = 0.1  # wrong labels in the worst of ten public test sets: 10.1 % [Northcutt, Athalye, Mueller 2021]


@dataclass(frozen=True)
class LabelError:
    """An image whose label is probably wrong. Classes are numbers."""

    row: int
    label: int
    suggestion: int  # the most likely class
    p_label: float
    p_suggestion: float

    @property
    def score(self) -> float:
        """From 0 (surely wrong) to 0.5 (both are as likely): the normalized margin."""
        return (self.p_label - self.p_suggestion + 1) / 2


def find(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> list[LabelError]:
    """The probable label errors, the lowest score first, of probabilities [N, C] and labels [N]; ties by row."""
    best, rows = probabilities.argmax(1), np.arange(len(labels))
    another_is_sure = probabilities >= thresholds(probabilities, labels) - TOLERANCE
    another_is_sure[rows, labels] = False
    label_probability, highest = probabilities[rows, labels], probabilities[rows, best]
    is_error = another_is_sure.any(1) & (highest - label_probability > TOLERANCE)
    label_errors = [
        LabelError(int(row), int(labels[row]), int(best[row]), float(label_probability[row]), float(highest[row]))
        for row in np.flatnonzero(is_error)
    ]
    return sorted(label_errors, key=lambda error: (error.score, error.row))


def doubt(errors: int, images: int) -> str:
    """A sentence if so many labels of images cannot all be wrong; else empty."""
    if errors <= MOST_SHARE * images:
        return ""
    return f"{errors / images:.0%} of the labels are too many to be wrong: these models are too weak to judge labels"


def thresholds(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean probability [C] that the images of each class get for it; infinite for a class without an image."""
    means = []
    for k in range(probabilities.shape[1]):
        values = probabilities[labels == k, k]
        # fsum: the same result in any order.
        means.append(max(math.fsum(values) / len(values), LOWEST) if len(values) else math.inf)
    return np.array(means)


def table(
    label_errors: Sequence[LabelError], paths: Sequence[str], classes: Sequence[str]
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Header and rows of label_errors.csv, by rank. `paths`: of all rows."""
    header = ("rank", "path", "given", "suggested", "p_given", "p_suggested", "score")
    rows: list[tuple[object, ...]] = []
    for rank, error in enumerate(label_errors, start=1):
        figures = (round(figure, DIGITS) for figure in (error.p_label, error.p_suggestion, error.score))
        rows.append((rank, paths[error.row], classes[error.label], classes[error.suggestion], *figures))
    return header, rows


def corrections(
    label_errors: Sequence[LabelError], paths: Sequence[str], classes: Sequence[str]
) -> list[tuple[str, str, str]]:
    """The rows (path, label, reason) that data/corrections.csv would have if every suggestion were right."""
    rows = []
    for rank, error in enumerate(label_errors, start=1):
        label, suggestion = classes[error.label], classes[error.suggestion]
        reason = f"label error {rank}: {label} {error.p_label:.2f}, {suggestion} {error.p_suggestion:.2f}"
        rows.append((paths[error.row], suggestion, reason))
    return rows
