"""Train steps, and the logits of an evaluation. Totals are summed on the device; whoever reads them divides once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.engine.ema import Ema
from pipeline.engine.parallel import ParallelModel
from pipeline.engine.precision import Precision


@dataclass(frozen=True)
class Batch:
    """What one process works on in one step.

    images: normalized [n, 3, h, w]; labels: int64 [n]; targets: what the loss compares with, the labels or, where
    images are mixed, class probabilities [n, classes]. A parameter group uses the rate times its own `scale`.
    Drop-out and its like are drawn from `seed` plus the number of the part of the global batch.
    """

    step: int
    images: Tensor
    labels: Tensor
    targets: Tensor
    learning_rate: float
    seed: int


@dataclass(frozen=True)
class Totals:
    """What the steps added up since the last reset, on the device.

    `sums` are float64 [parts, 3]: loss sum, right answers and images of every part of the global batch, and zeros for
    the parts of other processes. So adding up all processes only fills the table, and rounds nothing.
    """

    sums: Tensor
    broken_step: Tensor  # int64: the first step whose loss was not finite, or -1

    @classmethod
    def zero(cls, device: torch.device, parts: int) -> "Totals":
        return cls(torch.zeros(parts, 3, dtype=torch.float64, device=device), torch.full((), -1, device=device))

    def add(self, step: int, part: int, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Count a part of a batch in; nothing is read back, so the device is not waited for."""
        count, right = len(labels), (logits.argmax(1) == labels).sum()
        loss = loss.detach().double()
        self.sums[part].add_(torch.stack([loss * count, right.double(), torch.full_like(loss, count)]))
        first = (self.broken_step < 0) & ~torch.isfinite(loss)
        self.broken_step.copy_(torch.where(first, step, self.broken_step))


@dataclass(frozen=True)
class Recipe:
    """How a step is taken."""

    criterion: nn.Module
    precision: Precision
    optimizer: Optimizer
    ema: Ema
    clip_norm: float  # 0: gradients are not clipped


def train(parallel_model: ParallelModel, batches: Iterable[Batch], recipe: Recipe, totals: Totals) -> Iterator[Batch]:
    """Take a training step a batch; yield each batch after its step, with `totals` updated."""
    precision, optimizer = recipe.precision, recipe.optimizer
    for batch in batches:
        for group in optimizer.param_groups:
            group["lr"] = batch.learning_rate * group["scale"]
        parts = (tensor.chunk(len(parallel_model.mine)) for tensor in (batch.images, batch.labels, batch.targets))
        for part, images, labels, targets in zip(parallel_model.mine, *parts, strict=True):
            torch.manual_seed(batch.seed + part)
            with parallel_model.part(part):
                with precision.autocast():
                    logits = parallel_model.model(images)
                    loss = recipe.criterion(logits, targets)
                precision.backward(loss / parallel_model.divisor, optimizer)
            with precision.exact():
                totals.add(batch.step, part, loss, logits, labels)
        precision.step(optimizer, recipe.clip_norm)
        recipe.ema.update()
        yield batch


def logits(model: nn.Module, batches: Iterable[Tensor], precision: Precision) -> Iterator[Tensor]:
    """Yield the logits float32 [n, classes] of each batch, in evaluation mode; restore the model's mode at the end."""
    was_training = model.training
    model.eval()
    precision.weights_changed()
    try:
        with torch.no_grad():
            for images in batches:
                with precision.autocast():
                    found = model(images)
                yield found.float().clone()  # the next replay of a CUDA graph would write over it
    finally:
        precision.weights_changed()
        model.train(was_training)
