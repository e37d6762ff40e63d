"""The precision of a training: one interface, so the training loop has no branch for any of them.

fp32 is a member too: its autocast and its gradient scaler are disabled and do nothing.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Precision(Protocol):
    """What the training loop asks of a precision."""

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """The model and the optimizer, changed as the precision needs. Call it before the model is wrapped."""

    def autocast(self) -> AbstractContextManager[Any]:
        """The context for a forward pass and its loss."""

    def exact(self) -> AbstractContextManager[Any]:
        """The context for arithmetic that must not be cast, such as resampling."""

    def backward(self, loss: Tensor, optimizer: Optimizer) -> None:
        """Add the gradients of `loss` to those of the parameters."""

    def step(self, optimizer: Optimizer, clip_norm: float) -> None:
        """Clip the gradients' norm (0: do not clip), update the weights, and reset the gradients."""

    def weights_changed(self) -> None:
        """Call it after anything except `step` has changed the weights: a resume, a swap with their average."""

    def state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state that an exact resume needs."""

    def load_state_dict(self, state: dict[str, Any], optimizer: Optimizer) -> None:
        """Restore the state. Call it after the model's state is loaded and before the optimizer's."""


def clip(parameters: Iterable[Tensor], norm: float) -> None:
    """Scale the gradients so that their norm over all parameters is at most `norm`; 0 changes nothing."""
    if norm > 0:
        nn.utils.clip_grad_norm_(parameters, norm)


def allow_tf32(enabled: bool) -> None:
    """Set whether a GPU may multiply float32 in TF32, for matrices and convolutions.

    torch's defaults for the two differ.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = enabled


@dataclass(frozen=True)
class Native:
    """torch's own autocast, gradient scaler and TF32 switch, each possibly off."""

    device_type: str
    dtype: torch.dtype
    enabled: bool
    tf32: bool
    scaler: torch.amp.GradScaler

    @classmethod
    def create(cls, device_type: str, dtype: torch.dtype | None = None, *, tf32: bool = False) -> "Native":
        """A precision with autocast to `dtype`, or without autocast. Only float16 scales the loss."""
        scaler = torch.amp.GradScaler(device_type, enabled=dtype is torch.float16)
        return cls(device_type, dtype or torch.bfloat16, dtype is not None, tf32, scaler)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        allow_tf32(self.tf32)
        return model, optimizer

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.enabled)

    def exact(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def backward(self, loss: Tensor, optimizer: Optimizer) -> None:
        self.scaler.scale(loss).backward()

    def step(self, optimizer: Optimizer, clip_norm: float) -> None:
        self.scaler.unscale_(optimizer)
        clip((p for group in optimizer.param_groups for p in group["params"]), clip_norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad()

    def weights_changed(self) -> None:
        """Nothing to do: autocast's cache of cast weights ends with every forward pass."""

    def state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        state: dict[str, Any] = self.scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any], optimizer: Optimizer) -> None:
        self.scaler.load_state_dict(state)
