"""The figures of a run, metrics/train.json and metrics/eval.json, as values. Only this module reads and writes them.

It also has the names of the tables beside them.

It needs neither torch nor numpy, so a command that only reads the figures starts at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from pipeline.base import files, schema
from pipeline.dataset.split_table import SPLITS


@dataclass(frozen=True)
class TrainFigures:
    """The figures of the epoch whose weights are exported."""

    __pydantic_config__ = schema.STRICT

    exported_epoch: schema.Count
    train_loss: float
    train_accuracy: schema.Share
    val_loss: float
    val_accuracy: schema.Share
    stopped_early: bool | None = None  # None: train.patience is 0; the file lacks the key then


@dataclass(frozen=True)
class EvalFigures:
    """The figures of the exported weights on the test images."""

    __pydantic_config__ = schema.STRICT

    accuracy: schema.Share
    accuracy_low: schema.Share
    accuracy_high: schema.Share
    balanced_accuracy: schema.Share
    macro_f1: schema.Share
    nll: float
    ece: schema.Share

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy."""
        return self.accuracy_low, self.accuracy_high


FILES: dict[type, str] = {TrainFigures: "train.json", EvalFigures: "eval.json"}
HISTORY, PREDICTIONS, CLASSES = "history.csv", "predictions.csv", "per_class.csv"
Figures = TypeVar("Figures", TrainFigures, EvalFigures)


def path(metrics: Path | str, kind: type) -> Path:
    """The file of these figures in a folder of metrics."""
    return Path(metrics) / FILES[kind]


def read(metrics: Path, kind: type[Figures], remedy: str = "") -> Figures:
    """The figures in a folder of metrics. Raises UserError, with the remedy, if the file is missing or damaged."""
    file = path(metrics, kind)
    return schema.json_of(file, kind, remedy or f"restore it (git checkout {file}), or make it again (perennial repro)")


def parse(text: str | bytes, kind: type[Figures], name: str, remedy: str) -> Figures:
    """The figures in the text of a file that has this name. Raises UserError if it is damaged."""
    try:
        return schema.of_json(text, kind)
    except ValueError as error:
        raise schema.damage(name, error, remedy) from None


def write(metrics: Path, figures: TrainFigures | EvalFigures) -> None:
    """Write the file of these figures into a folder of metrics."""
    files.write_json(path(metrics, type(figures)), by_name(figures))


def by_name(figures: TrainFigures | EvalFigures) -> dict[str, float]:
    """Name → figure, as the file has them."""
    return {name: figure for name, figure in asdict(figures).items() if figure is not None}


def image_counts(rows: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Split → its number of images, from the rows of images.csv."""
    return {split: sum(int(row[split]) for row in rows) for split in SPLITS}
