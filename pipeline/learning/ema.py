"""The exponential moving average of the weights, in float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Ema:
    """After every step: average ← decay · average + (1 − decay) · weight. BatchNorm statistics are averaged, too.

    With decay 0 both lists are empty, and every method does nothing.
    """

    decay: float
    averages: list[Tensor]
    weights: list[Tensor]

    @classmethod
    def create(cls, model: nn.Module, decay: float) -> "Ema":
        """The average of the model's floating-point parameters and buffers. It starts with their current values."""
        weights: list[Tensor] = []
        if decay > 0:
            weights = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
        # The tensors themselves, not views: Apex's SyncBatchNorm replaces the storage of its buffers.
        return cls(decay, [tensor.detach().float().clone() for tensor in weights], weights)

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the weights."""
        if self.weights:
            torch._foreach_lerp_(self.averages, [weight.float() for weight in self.weights], 1 - self.decay)

    @contextmanager
    def swap(self) -> Iterator[None]:
        """Inside the block the weights of the model are the averages. After it they have their own values again."""
        own_values = [weight.detach().clone() for weight in self.weights]
        self._set_weights(self.averages)
        try:
            yield
        finally:
            self._set_weights(own_values)

    @torch.no_grad()
    def _set_weights(self, values: list[Tensor]) -> None:
        for weight, value in zip(self.weights, values, strict=True):
            weight.copy_(value)
