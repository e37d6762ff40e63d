"""The table of the classes and the confusion matrix, as values for a page."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.evaluation import metrics
from pipeline.evaluation.metrics import ClassFigures

MOST_CLASSES = 100  # rows of the table of classes
MOST_IN_MATRIX = 30  # classes; with more, there is a table of the most frequent confusions
MOST_IN_HALF = 6  # classes whose matrix fits into half of a page
MOST_WITH_SHARES = 12  # classes; with more, a cell of the matrix has room for one number
MOST_CONFUSIONS = 30


@dataclass(frozen=True)
class ClassRow(ClassFigures):
    """The figures of a class, and the 95 % interval of its recall: 0 to 1 without an image."""

    low: float
    high: float


def class_rows(classes: Sequence[str], counts: NDArray[np.int64]) -> list[ClassRow]:
    """The figures of all classes, from the confusion matrix."""
    rows = []
    for figures, right in zip(metrics.class_table(counts, classes), counts.diagonal().tolist(), strict=True):
        low, high = metrics.wilson(right, figures.images) if figures.images else (0.0, 1.0)
        rows.append(ClassRow(**vars(figures), low=low, high=high))
    return rows


def class_table(classes: Sequence[str], counts: NDArray[np.int64]) -> list[ClassRow]:
    """The figures of the classes, in their order; of more than MOST_CLASSES, of those with the lowest F1."""
    rows = class_rows(classes, counts)
    worst = sorted(sorted(range(len(rows)), key=lambda k: (rows[k].f1, k))[:MOST_CLASSES])
    return [rows[k] for k in worst]


@dataclass(frozen=True)
class Cell:
    """A cell of the confusion matrix."""

    pair: str  # the numbers of its two classes
    label: str
    prediction: str
    images: int
    share: float  # of the row
    target: str  # the address of the first of its images; of all images, if none is on the page

    @property
    def is_right(self) -> bool:
        return self.label == self.prediction


@dataclass(frozen=True)
class Confusion:
    """The confusion matrix; for more classes than it can show, the most frequent confusions."""

    rows: Sequence[Sequence[Cell]]  # of the same label; none if there are too many
    frequent: Sequence[Cell]  # the most frequent confusions
    confusion_count: int  # cells with an image that is taken for another class
    max_classes: int = MOST_IN_MATRIX

    @property
    def is_dense(self) -> bool:
        return len(self.rows) > MOST_WITH_SHARES


def confusion(classes: Sequence[str], counts: NDArray[np.int64], gallery: Collection[tuple[int, int]]) -> Confusion:
    """The confusions of these counts. `gallery`: the cells with an image in it."""
    totals = counts.sum(1).tolist()

    def cell(i: int, j: int) -> Cell:
        images, target = int(counts[i, j]), f"shot-{i}-{j}" if (i, j) in gallery else "images"
        return Cell(f"{i}-{j}", classes[i], classes[j], images, images / max(totals[i], 1), target)

    mistakes = [(int(i), int(j)) for i, j in zip(*counts.nonzero(), strict=True) if i != j]
    frequent = sorted(mistakes, key=lambda pair: -counts[pair])[:MOST_CONFUSIONS]
    numbers = range(len(classes)) if len(classes) <= MOST_IN_MATRIX else ()
    rows = [[cell(i, j) for j in numbers] for i in numbers]
    return Confusion(rows, [cell(*pair) for pair in frequent], len(mistakes))
