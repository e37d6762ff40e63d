"""NVIDIA Apex behind the engine's interfaces: amp O0–O3, DistributedDataParallel, SyncBatchNorm, FusedSGD.

Only this module imports Apex, and only choices.py, launch and the doctor import this module, when the params ask for
Apex. It is written for the commit in docker/pins.env. docs/apex.md gives the reason and the test of each guard below.
"""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.learning.precision import allow_tf32, clip


@contextmanager
def _ignore_warnings() -> Iterator[None]:
    """Silence Apex's warnings: at every use, that it is deprecated (see docs/apex.md), and about its old syntax."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


with _ignore_warnings():
    from apex import amp
    from apex.amp._amp_state import _amp_state


@dataclass(frozen=True)
class Amp:
    """apex.amp at an opt level. A process can use one level: O1's patches of torch's functions outlive the model."""

    level: str

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        allow_tf32(False)  # as for fp32 and fp16
        with _ignore_warnings():
            prepared: tuple[nn.Module, Optimizer] = amp.initialize(model, optimizer, opt_level=self.level, verbosity=0)
        return prepared

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()  # `prepare` has patched the model, or torch

    @contextmanager
    def exact(self) -> Iterator[None]:
        """O1 casts nothing in this block. Elsewhere it would resample images in half precision."""
        handle = getattr(_amp_state, "handle", None)  # only O1 has one; other levels cast the model's input and output
        if handle is None:
            yield
            return
        is_active, handle._is_active = handle._is_active, False
        try:
            yield
        finally:
            handle._is_active = is_active

    def backward(self, loss: Tensor, optimizer: Optimizer) -> None:
        # `step` unscales once. Unscaling after every microbatch would move its gradients into a stash. torch's DDP
        # exchanges gradients only with the last microbatch, and would never see them. The stash must exist first.
        optimizer._amp_lazy_init()  # type: ignore[attr-defined]
        with amp.scale_loss(loss, optimizer, delay_unscale=True) as scaled_loss:
            scaled_loss.backward()

    def step(self, optimizer: Optimizer, clip_norm: float) -> None:
        with amp.scale_loss(torch.zeros(()), optimizer):
            pass  # its end unscales the summed gradients into the masters, and checks for an overflow
        # Clip the masters' gradients: under O2, those of the half-precision weights are still scaled.
        clip(amp.master_params(optimizer), clip_norm)
        optimizer.step()
        optimizer.zero_grad()  # without set_to_none, which is a TypeError under O2 (Apex issue 1196)

    def weights_changed(self) -> None:
        """Drop O1's half-precision copies of the weights: evaluation would use the old ones (Apex issue 796)."""
        if (handle := getattr(_amp_state, "handle", None)) is not None:
            handle._clear_cache()

    def state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        # No state dict of Apex holds the fp32 masters, and the half-precision weights do not determine them.
        masters = [master.detach().clone() for master in amp.master_params(optimizer)]
        return {"scalers": dict(amp.state_dict()), "masters": masters}

    def load_state_dict(self, state: dict[str, Any], optimizer: Optimizer) -> None:
        amp.load_state_dict(state["scalers"])
        # The masters must exist before the optimizer's state is loaded: the state is cast to their type.
        optimizer._amp_lazy_init()  # type: ignore[attr-defined]
        with torch.no_grad():
            for master, saved in zip(amp.master_params(optimizer), state["masters"], strict=True):
                master.copy_(saved)
        self.weights_changed()


def ddp(model: nn.Module, deterministic: bool) -> nn.Module:
    """The model in apex.parallel.DistributedDataParallel.

    `deterministic`: one reduction after the backward pass, in one order. Apex does not share buffers such as BatchNorm
    statistics; `collectives.broadcast_buffers` does.
    """
    from apex.parallel import DistributedDataParallel

    with _ignore_warnings():
        wrapped: nn.Module = DistributedDataParallel(model, delay_allreduce=deterministic)
    return wrapped


def sync_bn(model: nn.Module) -> nn.Module:
    """The model with apex.parallel.SyncBatchNorm in place of BatchNorm."""
    from apex.parallel import convert_syncbn_model

    with _ignore_warnings():
        converted: nn.Module = convert_syncbn_model(model)
    return converted


def fused_sgd(groups: list[dict[str, Any]], lr: float, momentum: float, nesterov: bool) -> Optimizer:
    """apex.optimizers.FusedSGD: SGD in one kernel over all tensors. It needs the extension amp_C."""
    from apex.optimizers import FusedSGD

    optimizer: Optimizer = FusedSGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)
    return optimizer


def fault() -> str:
    """Why the installed Apex cannot be used; empty if it can.

    Loads the extensions. They need the torch that they were built for. With another one, Apex fails only in use, or
    falls back without a message.
    """
    for extension in ("amp_C", "apex_C", "syncbn"):
        try:
            __import__(extension)
        except ImportError as error:
            return f"its extension {extension} does not load ({error})"
    return ""
