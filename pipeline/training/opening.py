"""What `train` says before its first step: the model, the images, the steps, and what they run on."""

from torch import nn

from pipeline.config import resolution
from pipeline.config.params import Train
from pipeline.data.split_table import SPLITS
from pipeline.loader import sampler
from pipeline.training import provenance
from pipeline.training.job import Job


def block(job: Job, model: nn.Module) -> list[str]:
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


def _count(model: nn.Module, trained_only: bool) -> int:
    return sum(values.numel() for values in model.parameters() if values.requires_grad or not trained_only)


def _pixels(settings: Train) -> str:
    """The sides of the training crops: 224 × 224, or 96 × 96, 128 × 128, 160 × 160."""
    return ", ".join(f"{side} × {side}" for side in resolution.used(settings))


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}{'es' if word.endswith('s') else 's'}"
