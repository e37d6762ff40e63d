"""The learning rate of every step, the ends of epochs, early stopping, when to save: pure functions."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config.params import Run, Train
from pipeline.loader import sampler


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes over a training, as a factor of the base learning rate."""

    kind: str  # train.schedule
    steps: int  # of the training
    warmup_steps: int
    final: float = 0.0  # train.final_lr
    drops: Sequence[int] = ()  # of `step`: the steps at which the factor is multiplied by `drop`, ascending
    drop: float = 1.0

    def lr_factor(self, step: int) -> float:
        """The factor in `step` (from 0).

        Linear from 1 / warmup_steps to 1 during the warm-up [Goyal et al. 2017]. Then `constant`: 1. `cosine`: half a
        cosine from 1 to `final`, which the step after the last would have [Loshchilov 2017]. `step`: `drop` to the
        power of the number of drops so far; they are counted from the start of the training.
        """
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return {
            "constant": 1.0,
            "cosine": self.final + (1 - self.final) * (0.5 * (1 + math.cos(math.pi * progress))),
            "step": self.drop ** bisect_right(self.drops, step),
        }[self.kind]


def scaled_lr(lr: float, batch: int, reference: int) -> float:
    """The learning rate for batches of `batch`, if `lr` is meant for batches of `reference` [Goyal et al. 2017].

    It is proportional to the batch size. With `reference` 0 it is `lr`.
    """
    return lr * batch / reference if reference else lr


def warmup_epochs(settings: Train) -> float:
    """The length of the warm-up in epochs: `train.warmup_epochs`, but at most half of the training.

    So a short trial (`-S train.epochs=1`) also reaches its learning rate, and then trains with it.
    """
    return min(settings.warmup_epochs, settings.epochs / 2)


def learning_rates(settings: Train, rows: int) -> list[float]:
    """The learning rate of every step of a training on `rows` images."""
    batch, steps = settings.batch_size, sampler.steps(settings.epochs, rows, settings.batch_size)
    drop_epochs = range(settings.step_epochs, settings.epochs, settings.step_epochs)
    schedule = Schedule(
        kind=settings.schedule,
        steps=steps,
        warmup_steps=round(warmup_epochs(settings) * rows / batch),
        final=settings.final_lr,
        drops=[sampler.epoch_end(epoch - 1, rows, batch) for epoch in drop_epochs],
        drop=settings.step_factor,
    )
    base = scaled_lr(settings.lr, batch, settings.reference_batch)
    return [base * schedule.lr_factor(step) for step in range(steps)]


def best_epoch(history: Sequence[Mapping[str, Any]]) -> int:
    """The epoch (from 1) with the highest validation accuracy; of equal ones the first. 0 if there is none.

    An epoch whose validation loss is not finite is never the best: its weights cannot be exported.
    """
    finite = (epoch for epoch, row in enumerate(history, 1) if math.isfinite(row["val_loss"]))
    return max(finite, key=lambda epoch: history[epoch - 1]["val_accuracy"], default=0)


def should_stop(history: Sequence[Mapping[str, Any]], patience: int) -> bool:
    """Whether the last `patience` epochs all have no higher validation accuracy than the best before them.

    `history`: one row per epoch. With `patience` 0 a training is never stopped early.
    """
    return patience > 0 and len(history) - best_epoch(history) >= patience


def finished_epoch(step: int, rows: int, batch: int) -> int:
    """The epoch (from 1) that ends with the `step`-th step, or 0. Needs batch <= rows: then no two end together."""
    epoch = -(-step * batch // rows)
    return epoch if sampler.epoch_end(epoch - 1, rows, batch) == step else 0


def checkpoint_age(run: Run, at_epoch_end: bool) -> int:
    """The age in seconds of the newest working checkpoint at which another one is saved."""
    return min(run.epoch_checkpoint_seconds, run.checkpoint_seconds) if at_epoch_end else run.checkpoint_seconds
