"""The outputs of the train stage."""

from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline.base import files
from pipeline.config.params import Params
from pipeline.evaluation import figures
from pipeline.evaluation.figures import TrainFigures
from pipeline.learning import schedule
from pipeline.learning.state import HISTORY, Progress
from pipeline.models import exported, network
from pipeline.models.description import Description, View


def exported_row(config: Params, progress: Progress) -> dict[str, Any]:
    """The row of the history of the epoch whose weights are exported. Without a best epoch it is the last one."""
    best = schedule.best_epoch(progress.history) if config.train.export == "best" else 0
    return progress.history[best - 1]


def summary(config: Params, progress: Progress) -> str:
    """The sentence printed at the end of a training: the accuracy of the model, and the folders."""
    row = exported_row(config, progress)
    curves = f"; curves: tensorboard --logdir {config.paths.runs}" if config.train.has_steps else ""
    return f"done; the model is in {config.paths.models}/ (validation accuracy {row['val_accuracy']:.4f}){curves}"


def write(config: Params, classes: tuple[str, ...], weights: dict[str, Tensor], progress: Progress) -> None:
    """Write the exported model, train.json and history.csv."""
    settings, metrics = config.train, Path(config.paths.metrics)
    row = exported_row(config, progress)
    epoch = row["epoch"]
    normalization = network.normalization(settings.model)
    description = Description(
        model=settings.model,
        classes=classes,
        view=View.from_params(config),
        mean=normalization.mean,
        std=normalization.std,
        export=settings.export,
        epoch=epoch,
        arithmetic=settings.arithmetic,
    )
    exported.save(Path(config.paths.models), weights, description)
    figures.write(
        metrics,
        TrainFigures(
            exported_epoch=epoch,
            train_loss=row["train_loss"],
            train_accuracy=row["train_accuracy"],
            val_loss=row["val_loss"],
            val_accuracy=row["val_accuracy"],
            stopped_early=schedule.should_stop(progress.history, settings.patience) if settings.patience else None,
        ),
    )
    files.write_csv(metrics / figures.HISTORY, HISTORY, ([row[name] for name in HISTORY] for row in progress.history))
