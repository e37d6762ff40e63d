"""Images that probably have a wrong label, by confident learning [Northcutt, Jiang, Chuang 2021, JAIR 70, 1373-1411].

The answers must be of models that were not trained on the image. A class has a threshold: the mean probability that its
own images get for it. An image is a probable label error if another class is sure (its probability is at least the
threshold of that class), and the class of its label is not the most likely one.

This is the count of the paper without its last step, which takes as many images of each pair of classes as an estimate
of the noise says (cleanlab: "prune_by_noise_rate"). A person looks at each image, so each must have its own evidence,
and must not depend on a rounded number. The most conspicuous come first: those where the most likely class leads the
given one by most ("normalized margin"), because a person must decide between the two.

cleanlab has both steps, and is the oracle in the tests. As a dependency it would bring pandas and scikit-learn, about
150 MB, for what is here.
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


@dataclass(frozen=True)
class LabelError:
    """An image whose label is probably wrong. Classes are numbers."""

    row: int
    given: int
    suggested: int  # the most likely class
    p_given: float
    p_suggested: float

    @property
    def score(self) -> float:
        """From 0 (surely wrong) to 0.5 (both are as likely): the normalized margin."""
        return (self.p_given - self.p_suggested + 1) / 2

    @property
    def figures(self) -> tuple[float, float, float]:
        return self.p_given, self.p_suggested, self.score


def find(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> list[LabelError]:
    """The probable label errors, the lowest score first, of probabilities [N, C] and labels [N]; ties by row."""
    best, rows = probabilities.argmax(1), np.arange(len(labels))
    another_is_sure = probabilities >= thresholds(probabilities, labels) - TOLERANCE
    another_is_sure[rows, labels] = False
    given, highest = probabilities[rows, labels], probabilities[rows, best]
    suspected = another_is_sure.any(1) & (highest - given > TOLERANCE)
    found = [
        LabelError(int(row), int(labels[row]), int(best[row]), float(given[row]), float(highest[row]))
        for row in np.flatnonzero(suspected)
    ]
    return sorted(found, key=lambda one: (one.score, one.row))


def thresholds(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean probability [C] that the images of each class get for it; infinite for a class without an image."""
    own = [probabilities[labels == k, k] for k in range(probabilities.shape[1])]
    # fsum: the same result in any order.
    return np.array([max(math.fsum(part) / len(part), LOWEST) if len(part) else math.inf for part in own])


def table(
    found: Sequence[LabelError], paths: Sequence[str], classes: Sequence[str]
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Header and rows of label_errors.csv, by rank. `paths`: of all rows."""
    header = ("rank", "path", "given", "suggested", "p_given", "p_suggested", "score")
    return header, [
        (rank, paths[one.row], classes[one.given], classes[one.suggested], *map(_rounded, one.figures))
        for rank, one in enumerate(found, start=1)
    ]


def corrections(
    found: Sequence[LabelError], paths: Sequence[str], classes: Sequence[str]
) -> list[tuple[str, str, str]]:
    """The rows (path, label, reason) that data/corrections.csv would have if every suggestion were right."""
    return [
        (paths[one.row], classes[one.suggested], reason(rank, one, classes)) for rank, one in enumerate(found, start=1)
    ]


def reason(rank: int, one: LabelError, classes: Sequence[str]) -> str:
    """Why a correction is suggested: the rank, and both classes with their probabilities."""
    given, suggested = f"{classes[one.given]} {one.p_given:.2f}", f"{classes[one.suggested]} {one.p_suggested:.2f}"
    return f"label error {rank}: {given}, {suggested}"


def _rounded(figure: float) -> float:
    return round(figure, DIGITS)
