"""What a training does that its params alone do not show."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.config.params import Train
from pipeline.engine.loss import balanced_weights
from pipeline.training import schedule


def notes(settings: Train, counts: Mapping[str, int]) -> Iterator[str]:
    """One sentence each. `counts`: the training images of every class."""
    if (used := schedule.warmup_epochs(settings)) < settings.warmup_epochs:
        yield (
            f"train.warmup_epochs: {settings.warmup_epochs:g} is more than half of train.epochs ({settings.epochs}); "
            f"used: {used:g}"
        )
    if settings.class_weights == "balanced":
        weights = dict(zip(counts, balanced_weights(counts), strict=True))
        least, most = (f"{weights[name]:.3g} ({name!r}, {counts[name]} images)" for name in _extremes(counts))
        yield f"train.class_weights: 'balanced': weights from {least} to {most} in the training loss"


def ending(settings: Train, history: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Why a training has ended before its last epoch, if it has."""
    if schedule.should_stop(history, settings.patience):
        best = schedule.best_epoch(history)
        why = "no epoch had a finite validation loss"
        if best:
            accuracy = history[best - 1]["val_accuracy"]
            why = f"no later epoch had a higher validation accuracy than epoch {best} ({accuracy:.4f})"
        yield f"ended after epoch {len(history)} of {settings.epochs} by train.patience: {settings.patience}: {why}"


def _extremes(counts: Mapping[str, int]) -> tuple[str, str]:
    """The class with the most training images, and that with the fewest."""
    return max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
