"""Train steps, and the logits of an evaluation. Counts are summed on the device; whoever reads them divides once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.engine.precision import Precision


@dataclass(frozen=True)
class Batch:
    """What one process works on in one step: normalized images [n, 3, h, w], labels int64 [n], the learning rate.

    A parameter group uses the rate times its own `scale`.
    """

    step: int
    images: Tensor
    labels: Tensor
    learning_rate: float


@dataclass(frozen=True)
class Counts:
    """What the steps added up since the last reset, on the device: float64 [loss sum, right answers, pictures]."""

    sums: Tensor
    broken_step: Tensor  # int64: the first step whose loss was not finite, or -1

    @classmethod
    def zero(cls, device: torch.device) -> "Counts":
        return cls(torch.zeros(3, dtype=torch.float64, device=device), torch.full((), -1, device=device))

    def add(self, step: int, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Count a step in; nothing is read back, so the device is not waited for."""
        count, right = len(labels), (logits.argmax(1) == labels).sum()
        loss = loss.detach().double()
        self.sums.add_(torch.stack([loss * count, right.double(), torch.full_like(loss, count)]))
        first = (self.broken_step < 0) & ~torch.isfinite(loss)
        self.broken_step.copy_(torch.where(first, step, self.broken_step))


def train(
    model: nn.Module,
    batches: Iterable[Batch],
    criterion: nn.Module,
    precision: Precision,
    optimizer: Optimizer,
    counts: Counts,
) -> Iterator[Batch]:
    """Take a training step a batch; yield each batch after its step, with `counts` updated."""
    for batch in batches:
        for group in optimizer.param_groups:
            group["lr"] = batch.learning_rate * group["scale"]
        with precision.autocast():
            logits = model(batch.images)
            loss = criterion(logits, batch.labels)
        precision.step(loss, optimizer)
        counts.add(batch.step, loss, logits, batch.labels)
        yield batch


def logits(model: nn.Module, batches: Iterable[Tensor], precision: Precision) -> Iterator[Tensor]:
    """The logits float32 [n, classes] of every batch of images, in evaluation mode, which is left as it was found."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for images in batches:
                with precision.autocast():
                    found = model(images)
                yield found.float()
    finally:
        model.train(was_training)
