"""Training steps, and the logits of an evaluation.

Totals are added up on the device. No value is read from the device in a step, so the host does not wait for it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.base import threads
from pipeline.learning.ema import Ema
from pipeline.learning.parallel import ParallelModel
from pipeline.learning.precision import Precision
from pipeline.loader.batches import Batch
from pipeline.models import network

Item = TypeVar("Item")


class Lookahead(Iterator[Item]):
    """The items of an iterator. `begin` makes the next one before the reader requests it."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._next: Future[Item] | None = None

    def begin(self) -> None:
        """Make the next item, once. If that fails, the error is raised where the reader requests the item."""
        if self._next is None:
            self._next = threads.begun(next, self._items)  # the end of the items is an error, too

    def __next__(self) -> Item:
        self.begin()
        assert self._next is not None
        future, self._next = self._next, None
        return future.result()


@dataclass(frozen=True)
class Totals:
    """Sums over the steps since the last reset, on the device.

    `sums` are float64 [microbatches, 3]: loss sum, correct predictions and images of every microbatch of the global
    batch. Microbatches of other processes are zeros here, so an all-reduce only fills the table and rounds nothing.
    """

    sums: Tensor
    broken_step: Tensor  # int64: the first step with a loss that is not finite, or -1

    @classmethod
    def zero(cls, device: torch.device, microbatches: int) -> "Totals":
        sums = torch.zeros(microbatches, 3, dtype=torch.float64, device=device)
        return cls(sums, torch.full((), -1, device=device))

    def add(self, step: int, microbatch: int, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add one microbatch: its mean loss [], logits [n, classes] and labels int64 [n]."""
        count, correct = len(labels), (logits.argmax(1) == labels).sum()
        loss = loss.detach().double()
        self.sums[microbatch].add_(torch.stack([loss * count, correct.double(), torch.full_like(loss, count)]))
        first = (self.broken_step < 0) & ~torch.isfinite(loss)
        self.broken_step.copy_(torch.where(first, step, self.broken_step))


class Passes(Protocol):
    """How images go through a model: forward and backward in training, and forward alone in evaluation."""

    def gradients(
        self, learner: "Learner", parallel_model: ParallelModel, images: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add a microbatch's gradients to those of the parameters. Returns its mean loss [] and logits [n, classes]."""

    def outputs(self, model: nn.Module, precision: Precision, images: Tensor) -> Tensor:
        """What the model, in evaluation mode, says of a batch of images. The next call may overwrite it."""


class Eager:
    """Passes whose kernels the host starts one by one."""

    def gradients(
        self, learner: "Learner", parallel_model: ParallelModel, images: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        with learner.precision.autocast():
            logits = parallel_model.model(images)
            loss = learner.criterion(logits, targets)
        learner.precision.backward(loss / parallel_model.divisor, learner.optimizer)
        return loss, logits

    def outputs(self, model: nn.Module, precision: Precision, images: Tensor) -> Tensor:
        with precision.autocast():
            outputs: Tensor = model(images)
        return outputs


EAGER = Eager()


@dataclass(frozen=True)
class Learner:
    """A model in training, and everything else that a training step changes."""

    model: nn.Module  # not wrapped
    criterion: nn.Module
    optimizer: Optimizer  # a parameter group has a key `scale`: its learning rate as a multiple of the scheduled one
    precision: Precision
    ema: Ema
    clip_norm: float  # 0: gradients are not clipped
    passes: Passes = EAGER

    def logits(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        """The logits float32 [n, classes] of every batch of images, as `logits` returns them."""
        return logits(self.model, batches, self.precision, self.passes)

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact resume needs, as tensors and plain values."""
        return {
            "model": self.model.state_dict(),
            "precision": self.precision.state_dict(self.optimizer),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.averages,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned, in the order that Apex needs: model, precision, optimizer.

        Raises RuntimeError, ValueError, KeyError or TypeError for the state of another learner.
        """
        network.load_model_state(self.model, state["model"])
        self.precision.load_state_dict(state["precision"], self.optimizer)
        self.optimizer.load_state_dict(state["optimizer"])
        for average, value in zip(self.ema.averages, state["ema"], strict=True):
            average.copy_(value)


def train(
    learner: Learner,
    parallel_model: ParallelModel,
    batches: Iterable[Batch],
    learning_rates: Sequence[float],
    totals: Totals,
    begin: Callable[[], None] = lambda: None,
) -> Iterator[Batch]:
    """Take one training step per batch. Yield each batch after its step, with `totals` updated.

    `parallel_model` wraps `learner.model`; `learning_rates` has one value per step, `totals` one row per microbatch.
    `begin` (`Lookahead.begin` of the batches) is called before the weights are updated. To update them, Apex, and fp16
    with Adam, wait for the GPU. The GPU then already has the next batch to make, and does not wait for the host.
    """
    precision, optimizer, share = learner.precision, learner.optimizer, parallel_model.share
    for batch in _exact_batches(batches, precision):
        for group in optimizer.param_groups:
            group["lr"] = learning_rates[batch.step] * group["scale"]
        pieces = (tensor.chunk(len(share.microbatches)) for tensor in (batch.images, batch.labels, batch.targets))
        for microbatch, images, labels, targets in zip(share.microbatches, *pieces, strict=True):
            torch.manual_seed(batch.seed + microbatch)
            with parallel_model.microbatch(microbatch):
                loss, logits = learner.passes.gradients(learner, parallel_model, images, targets)
            with precision.exact():
                totals.add(batch.step, microbatch, loss, logits, labels)
        with precision.exact():
            begin()
        precision.step(optimizer, learner.clip_norm)
        learner.ema.update()
        yield batch


def logits(
    model: nn.Module, batches: Iterable[Tensor], precision: Precision, passes: Passes = EAGER
) -> Iterator[Tensor]:
    """The logits float32 [n, classes] of every batch of images, in evaluation mode; the mode is restored at the end."""
    was_training = model.training
    model.eval()
    precision.weights_changed()
    try:
        with torch.no_grad():
            for images in _exact_batches(batches, precision):
                # A copy: the next replay of a CUDA graph overwrites the outputs.
                yield passes.outputs(model, precision, images).float().clone()
    finally:
        precision.weights_changed()
        model.train(was_training)


def _exact_batches(batches: Iterable[Item], precision: Precision) -> Iterator[Item]:
    """The batches, each made inside `precision.exact()`: otherwise Apex O1 would resample images in half precision."""
    iterator = iter(batches)
    while True:
        with precision.exact():
            try:
                batch = next(iterator)
            except StopIteration:
                return
        yield batch
