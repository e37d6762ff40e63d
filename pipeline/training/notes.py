"""What `train` prints: its facts before the first step, and what its params alone do not show."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from pipeline.config import resolution
from pipeline.config.params import Train
from pipeline.data.split_table import SPLITS
from pipeline.engine.loss import balanced_weights
from pipeline.loader import sampler
from pipeline.training import provenance, schedule
from pipeline.training.job import Job


def opening(job: Job, model: nn.Module) -> list[str]:
    """The facts of this training, one line each."""
    settings, world, data = job.config.train, job.world, job.dataset.packed
    all_of, trained = _count(model, trained_only=False), _count(model, trained_only=True)
    images = ", ".join(f"{len(data.rows(split)):,} {split}" for split in SPLITS)
    steps = sampler.steps(settings.epochs, job.rows, settings.batch_size)
    per_epoch = f"{job.rows / settings.batch_size:,.1f}".removesuffix(".0")
    threads = f", {settings.threads} {_plural('thread', settings.threads)} each" if world.device.type == "cpu" else ""
    most = "at most " if settings.patience else ""
    frozen = "" if trained == all_of else f", of which {trained:,} are trained"
    return [
        f"model      {settings.model}, {all_of:,} parameters{frozen}; pretrained weights: {settings.weights}",
        f"images     {images}; {len(data.classes)} classes; {_pixels(settings)} pixels",
        f"steps      {per_epoch} per epoch × {settings.epochs} epochs = {most}{steps:,}; "
        f"{settings.batch_size} images per step",
        f"device     {settings.device} ({provenance.device_name(world.device)}), "
        f"{world.size} {_plural('process', world.size)}{threads}",
        f"precision  {settings.precision}; parallel: {settings.parallel}",
    ]


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


def _count(model: nn.Module, trained_only: bool) -> int:
    return sum(values.numel() for values in model.parameters() if values.requires_grad or not trained_only)


def _pixels(settings: Train) -> str:
    """The sides of the training crops: 224 × 224, or 96 × 96, 128 × 128, 160 × 160."""
    return ", ".join(f"{side} × {side}" for side in resolution.used(settings))


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}{'es' if word.endswith('s') else 's'}"
