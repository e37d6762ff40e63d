"""The results of training and evaluation, from the folder of metrics: curves, answers for test images, figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.base import files, schema
from pipeline.evaluation import figures, metrics, prediction_table
from pipeline.evaluation.figures import EvalFigures


@dataclass(frozen=True)
class Answer:
    """The answer of the model for a test image. Classes are numbers, in the order of the model's classes."""

    path: str
    label: int
    prediction: int
    second_class: int  # the class with the second highest probability
    probabilities: tuple[float, ...]  # of these three classes

    @property
    def is_right(self) -> bool:
        return self.label == self.prediction


def make_answer(path: str, label: int, prediction: int, probabilities: Sequence[float]) -> Answer:
    """The answer for an image, from the probabilities of all classes."""
    second = max((k for k in range(len(probabilities)) if k != prediction), key=probabilities.__getitem__)
    return Answer(path, label, prediction, second, tuple(probabilities[k] for k in (label, prediction, second)))


@dataclass(frozen=True)
class Outcome:
    """The results of training and evaluation."""

    classes: tuple[str, ...]
    answers: list[Answer]  # of all test images, in the order of split.csv
    figures: EvalFigures
    bins: list[tuple[float, float, int, float]]  # of the calibration: low, high, images, accuracy
    history: dict[str, list[float]]  # a column of history.csv → its value in each epoch

    @property
    def counts(self) -> NDArray[np.int64]:
        """The confusion matrix."""
        predictions = np.array([answer.prediction for answer in self.answers], np.int64)
        labels = np.array([answer.label for answer in self.answers], np.int64)
        return metrics.confusion(predictions, labels, len(self.classes))


def read(folder: Path, classes: Sequence[str], epoch: int) -> Outcome:
    """The content of the folder of metrics. `epoch` is the exported one, which the history must have.

    Raises UserError for a missing or damaged file.
    """
    return Outcome(
        tuple(classes),
        _answers(folder / figures.PREDICTIONS, classes),
        figures.read(folder, EvalFigures),
        _bins(folder / "calibration.csv"),
        _history(folder / figures.HISTORY, epoch),
    )


def _answers(path: Path, classes: Sequence[str]) -> list[Answer]:
    numbers = {name: number for number, name in enumerate(classes)}
    with schema.reading(path, schema.checkout(path), KeyError):
        answers = [
            make_answer(row.path, numbers[row.label], numbers[row.prediction], row.probabilities)
            for row in prediction_table.read(path, classes)
        ]
        if not answers:
            raise ValueError("no test image in it")
        return answers


def _bins(path: Path) -> list[tuple[float, float, int, float]]:
    with schema.reading(path, schema.checkout(path), KeyError, TypeError):
        return [
            (float(row["low"]), float(row["high"]), int(row["count"]), float(row["accuracy"]))
            for row in files.read_csv(path)
        ]


def _history(path: Path, epoch: int) -> dict[str, list[float]]:
    with schema.reading(path, schema.checkout(path), KeyError, TypeError):
        rows = files.read_csv(path)
        if len(rows) < epoch:
            raise ValueError(f"{len(rows)} epochs; the model is of epoch {epoch}")
        columns = ("train_loss", "val_loss", "train_accuracy", "val_accuracy")
        return {name: [float(row[name]) for row in rows] for name in columns}
