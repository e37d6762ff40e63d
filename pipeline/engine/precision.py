"""How numbers are represented. Every member answers the same few questions, so the loop never asks which one it has.

The plain case is a member too: fp32 is a disabled autocast and a disabled gradient scaler, which do nothing.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Precision(Protocol):
    """What the training loop needs to know of a representation of numbers."""

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Change the model and the optimizer as the representation needs; before the learning rate is scheduled."""

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of every forward pass and loss."""

    def step(self, loss: Tensor, optimizer: Optimizer) -> None:
        """Backward pass, weight update, and gradients back to none."""

    def state_dict(self) -> dict[str, Any]:
        """What an exact resume needs of this member."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse of `state_dict`."""


@dataclass(frozen=True)
class Native:
    """torch's own autocast and gradient scaler, each possibly disabled."""

    device_type: str
    dtype: torch.dtype
    enabled: bool
    scaler: torch.amp.GradScaler

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        return model, optimizer

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.enabled)

    def step(self, loss: Tensor, optimizer: Optimizer) -> None:
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scaler.load_state_dict(state)


def _native(device_type: str, dtype: torch.dtype, autocast: bool) -> Native:
    return Native(device_type, dtype, autocast, torch.amp.GradScaler(device_type, enabled=False))


PRECISIONS: dict[str, Callable[[str], Precision]] = {
    "fp32": lambda device_type: _native(device_type, torch.bfloat16, autocast=False),
    "bf16": lambda device_type: _native(device_type, torch.bfloat16, autocast=True),
}
