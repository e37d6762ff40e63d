"""metrics/predictions.csv: for each test image its class, the predicted class, and the probability of every class."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.base import files


class Prediction(NamedTuple):
    """A row."""

    path: str
    label: str
    prediction: str
    probabilities: Sequence[float]  # [classes]


def columns(classes: Sequence[str]) -> tuple[str, ...]:
    """The header of a table for these classes."""
    return ("path", "label", "prediction", *(f"p_{name}" for name in classes))


def write(table: Path, classes: Sequence[str], rows: Iterable[Prediction]) -> None:
    """Write a table."""
    files.write_csv(table, columns(classes), ((*names, *probabilities) for *names, probabilities in rows))


def read(table: Path, classes: Sequence[str]) -> Iterator[Prediction]:
    """The rows, one by one: with many classes they do not fit in memory.

    Raises OSError, csv.Error, and ValueError for a table that is damaged or of other classes: call it in a block of
    `schema.reading`.
    """
    with table.open(encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines, strict=True)
        if tuple(next(rows, ())) != columns(classes):
            raise ValueError("its columns are not those of the classes")
        for path, label, prediction, *cells in rows:
            if len(cells) != len(classes):
                raise ValueError(f"{path} has {len(cells):,} probabilities, not {len(classes):,}")
            yield Prediction(path, label, prediction, tuple(map(float, cells)))
