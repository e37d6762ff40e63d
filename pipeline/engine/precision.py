"""How numbers are represented. Every member answers the same few questions, so the loop never asks which one it has.

The plain case is a member too: fp32 is a disabled autocast and a disabled gradient scaler, which do nothing.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Precision(Protocol):
    """What the training loop needs to know of a representation of numbers."""

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Change the model and the optimizer as the representation needs; before the model is wrapped."""

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of every forward pass and loss."""

    def exact(self) -> AbstractContextManager[Any]:
        """The context of arithmetic that must stay as it is written, such as resampling."""

    def backward(self, loss: Tensor, optimizer: Optimizer) -> None:
        """Add the gradients of `loss`."""

    def step(self, optimizer: Optimizer, clip_norm: float) -> None:
        """Clip the gradients' norm (0: not), update the weights, and set the gradients back."""

    def weights_changed(self) -> None:
        """To be called when weights were changed by anything but `step`: a resume, an exchange for their average."""

    def state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """What an exact resume needs of this member."""

    def load_state_dict(self, state: dict[str, Any], optimizer: Optimizer) -> None:
        """The reverse; to be called after the model's state is loaded and before the optimizer's."""


def clip(parameters: Iterable[Tensor], norm: float) -> None:
    """Scale the gradients so that their norm over all parameters is at most `norm`; 0 leaves them alone."""
    if norm > 0:
        nn.utils.clip_grad_norm_(parameters, norm)


def allow_tf32(allowed: bool) -> None:
    """Whether a GPU may multiply float32 in TF32. Said for both kinds of product, because torch's default is TF32 for
    convolutions and not for matrices."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


@dataclass(frozen=True)
class Native:
    """torch's own autocast, gradient scaler and TF32 switch, each possibly off."""

    device_type: str
    dtype: torch.dtype
    enabled: bool
    tf32: bool
    scaler: torch.amp.GradScaler

    @classmethod
    def of(cls, device_type: str, dtype: torch.dtype | None = None, *, tf32: bool = False) -> "Native":
        """Autocast to `dtype`, or none; only float16 needs its loss scaled."""
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
        """Nothing is kept of them: autocast's cache lives as long as one forward pass."""

    def state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        state: dict[str, Any] = self.scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any], optimizer: Optimizer) -> None:
        self.scaler.load_state_dict(state)
