"""Images that probably have a wrong label, by confident learning [Northcutt, Jiang, Chuang 2021, JAIR 70, 1373-1411].

The probabilities must be of models that were not trained on the image. The threshold of a class is the mean probability
of this class over the images with its label. An image is a probable label error if the probability of another class is
at least the threshold of that class, and the class of its label is not the most likely one.

The images are sorted by the normalized margin, the lead of the most likely class over the label. docs/label-errors.md
says what is left out of the paper, and why. cleanlab is the oracle in the tests.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# As cleanlab has them, so that the findings are the same.
TOLERANCE = 1e-6  # of equal probabilities
LOWEST = 2 * TOLERANCE  # threshold: no class is sure of everything
DIGITS = 6  # of a figure in the table
MOST_SHARE = 0.1  # wrong labels in the worst of ten public test sets: 10.1 % [Northcutt, Athalye, Mueller 2021]


class LabelError(NamedTuple):
    """A row of label_errors.csv: an image whose label is probably wrong."""

    rank: int
    path: str
    given: str
    suggested: str  # the most likely class
    p_given: float
    p_suggested: float
    score: float  # from 0 (surely wrong) to 0.5 (both are as likely): the normalized margin

    @property
    def reason(self) -> str:
        """The words for data/corrections.csv."""
        return f"label error {self.rank}: {self.given} {self.p_given:.2f}, {self.suggested} {self.p_suggested:.2f}"


def find(
    probabilities: NDArray[np.float64], labels: NDArray[np.int64], paths: Sequence[str], classes: Sequence[str]
) -> list[LabelError]:
    """The probable label errors, the lowest score first, of probabilities [N, C] and labels [N]; ties by row."""
    best, rows = probabilities.argmax(1), np.arange(len(labels))
    another_is_sure = probabilities >= thresholds(probabilities, labels) - TOLERANCE
    another_is_sure[rows, labels] = False
    label_probability, highest = probabilities[rows, labels], probabilities[rows, best]
    is_error = another_is_sure.any(1) & (highest - label_probability > TOLERANCE)
    scores = (label_probability - highest + 1) / 2
    found = np.flatnonzero(is_error)
    return [
        LabelError(rank, paths[row], classes[labels[row]], classes[best[row]], *figures)
        for rank, row in enumerate(found[scores[found].argsort(kind="stable")].tolist(), start=1)
        for figures in [(float(label_probability[row]), float(highest[row]), float(scores[row]))]
    ]


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


def table(label_errors: Sequence[LabelError]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Header and rows of label_errors.csv, by rank."""
    rows = [(*error[:4], *(round(figure, DIGITS) for figure in error[4:])) for error in label_errors]
    return LabelError._fields, rows
