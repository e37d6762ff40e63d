"""The texts that `train` prints before its first step and after an early stop."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from pipeline.config import resolution
from pipeline.config.params import Train
from pipeline.dataset.split_table import SPLITS
from pipeline.learning import collectives, schedule
from pipeline.learning.loss import balanced_weights
from pipeline.loader import sampler
from pipeline.running import provenance
from pipeline.running.job import Job


def training_facts(job: Job, model: nn.Module) -> list[str]:
    """The model, the images, the steps, the device and the precision of this training, one line each."""
    settings, world, data = job.config.train, job.world, job.dataset.packed
    total = sum(parameter.numel() for parameter in model.parameters())
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    images = ", ".join(f"{len(data.rows(split)):,} {split}" for split in SPLITS)
    steps = sampler.steps(settings.epochs, job.rows, settings.batch_size)
    per_epoch = f"{job.rows / settings.batch_size:,.1f}".removesuffix(".0")
    threads = f", {settings.threads} {_plural('thread', settings.threads)} each" if world.device.type == "cpu" else ""
    at_most = "at most " if settings.patience else ""
    of_which = "" if trainable == total else f", of which {trainable:,} are trained"
    sides = ", ".join(f"{side} × {side}" for side in resolution.sides_of_training(settings))
    length = (
        f"{per_epoch} per epoch × {settings.epochs} epochs = {at_most}{steps:,}; {settings.batch_size} images per step"
    )
    if not settings.has_steps:
        sides = f"{settings.eval_crop} × {settings.eval_crop}"
        length = "none (train.head: solved): epochs, learning rate, batch and random crops are not used"
    return [
        f"model      {settings.model}, {total:,} parameters{of_which}; pretrained weights: {settings.weights}",
        f"images     {images}; {len(data.classes)} classes; {sides} pixels",
        f"steps      {length}",
        f"device     {settings.device} ({provenance.device_name(world.device)}), "
        f"{world.size} {_plural('process', world.size)}{threads}",
        f"precision  {settings.precision}; parallel: {settings.parallel}; "
        f"backend: {collectives.backend_for(world.device, settings.backend)}",
    ]


def notes(settings: Train, counts: Mapping[str, int]) -> Iterator[str]:
    """A sentence for each setting that is changed or completed by others. `counts`: training images by class."""
    warmup = schedule.warmup_epochs(settings)
    if settings.has_steps and warmup < settings.warmup_epochs:
        yield (
            f"note: train.warmup_epochs: {settings.warmup_epochs:g} is more than half of train.epochs "
            f"({settings.epochs}); used: {warmup:g}"
        )
    if settings.class_weights == "balanced":
        weights = dict(zip(counts, balanced_weights(counts), strict=True))
        extremes = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
        lowest, highest = (f"{weights[name]:.3g} ({name!r}, {counts[name]} images)" for name in extremes)
        yield f"note: train.class_weights: 'balanced': weights from {lowest} to {highest} in the training loss"


def early_stop_note(settings: Train, history: Sequence[Mapping[str, Any]]) -> str:
    """Why a training has ended before its last epoch; empty if it has not."""
    if not schedule.should_stop(history, settings.patience):
        return ""
    reason = "no epoch had a finite validation loss"
    if best := schedule.best_epoch(history):
        accuracy = history[best - 1]["val_accuracy"]
        reason = f"no later epoch had a higher validation accuracy than epoch {best} ({accuracy:.4f})"
    return f"ended after epoch {len(history)} of {settings.epochs} by train.patience: {settings.patience}: {reason}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}{'es' if word.endswith('s') else 's'}"
