"""The outputs of the train stage."""

import math
from pathlib import Path

from torch import Tensor

from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.config.params import Params
from pipeline.loader import augment
from pipeline.models import exported
from pipeline.models.exported import Description, View
from pipeline.training.state import HISTORY, Progress


def write(config: Params, classes: tuple[str, ...], weights: dict[str, Tensor], progress: Progress) -> None:
    """Write the exported model, train.json and history.csv.

    Raises UserError, and writes nothing, if the validation loss of the exported weights is not finite.
    """
    settings, metrics = config.train, Path(config.paths.metrics)
    last = progress.history[-1]
    epoch = progress.best_epoch if settings.export == "best" else last["epoch"]
    row = progress.history[epoch - 1]
    if not math.isfinite(row["val_loss"]):
        raise UserError(
            f"the validation loss of epoch {epoch} is {row['val_loss']}; nothing is exported; lower train.lr "
            f"({settings.lr}) or lengthen train.warmup_epochs ({settings.warmup_epochs})"
        )
    description = Description(
        model=settings.model,
        classes=classes,
        view=View.of(config),
        mean=augment.MEAN,
        std=augment.STD,
        export=settings.export,
        epoch=epoch,
    )
    exported.save(Path(config.paths.models), weights, description)
    files.write_json(
        metrics / "train.json",
        {
            "epochs": last["epoch"],
            "steps": last["step"],
            "exported_epoch": epoch,
            "train": {"loss": row["train_loss"], "accuracy": row["train_accuracy"]},
            "val": {"loss": row["val_loss"], "accuracy": row["val_accuracy"]},
        },
    )
    files.write_csv(metrics / "history.csv", HISTORY, ([row[name] for name in HISTORY] for row in progress.history))
