"""NVIDIA Apex behind the engine's own questions: amp O0–O3, DistributedDataParallel, SyncBatchNorm, FusedSGD.

The only importer of Apex, imported only when asked for. The commit it is written for stands in docker/pins.env; the
guards below are each held by a test, and docs/apex.md says what they are for.
"""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.engine.precision import allow_tf32, clip


@contextmanager
def _quiet() -> Iterator[None]:
    """Apex warns at every use that it is deprecated, which docs/apex.md says, and of its own old syntax."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


with _quiet():
    from apex import amp
    from apex.amp._amp_state import _amp_state


@dataclass(frozen=True)
class Amp:
    """apex.amp at an opt level. One level a process: O1's patches of torch's functions outlive the model."""

    level: str

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        allow_tf32(False)  # as for fp32 and fp16: what is not half precision is not TF32 either
        with _quiet():
            prepared: tuple[nn.Module, Optimizer] = amp.initialize(model, optimizer, opt_level=self.level, verbosity=0)
        return prepared

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()  # the model, or torch itself, is already patched

    @contextmanager
    def exact(self) -> Iterator[None]:
        """O1 would resample images in half precision: inside this block it casts nothing."""
        handle = getattr(_amp_state, "handle", None)  # O1's; the other levels cast at the model's ends
        if handle is None:
            yield
            return
        was, handle._is_active = handle._is_active, False
        try:
            yield
        finally:
            handle._is_active = was

    def backward(self, loss: Tensor, optimizer: Optimizer) -> None:
        # Unscaled once, in `step`: unscaling every part of a batch would put its gradients aside, where torch's DDP,
        # which exchanges only with the last part, would never see them. The stash must exist before there are any.
        optimizer._amp_lazy_init()  # type: ignore[attr-defined]
        with amp.scale_loss(loss, optimizer, delay_unscale=True) as scaled:
            scaled.backward()

    def step(self, optimizer: Optimizer, clip_norm: float) -> None:
        with amp.scale_loss(torch.zeros(()), optimizer):
            pass  # leaving it unscales what `backward` added up, into the masters, and looks for an overflow
        # The masters' gradients are clipped: those of O2's half weights are still scaled.
        clip(amp.master_params(optimizer), clip_norm)
        optimizer.step()
        optimizer.zero_grad()  # plain: under O2 set_to_none is a TypeError (Apex issue 1196)

    def weights_changed(self) -> None:
        """Drop O1's half-precision copies of the weights: evaluation would go on using the old ones (issue 796)."""
        if (handle := getattr(_amp_state, "handle", None)) is not None:
            handle._clear_cache()

    def state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        # The fp32 masters are in no state dict of Apex's, and half weights do not determine them.
        masters = [master.detach().clone() for master in amp.master_params(optimizer)]
        return {"scalers": dict(amp.state_dict()), "masters": masters}

    def load_state_dict(self, state: dict[str, Any], optimizer: Optimizer) -> None:
        amp.load_state_dict(state["scalers"])
        # The masters must exist before the optimizer's state is loaded: it takes over their type, half or single.
        optimizer._amp_lazy_init()  # type: ignore[attr-defined]
        with torch.no_grad():
            for master, saved in zip(amp.master_params(optimizer), state["masters"], strict=True):
                master.copy_(saved)
        self.weights_changed()


def ddp(model: nn.Module, deterministic: bool) -> nn.Module:
    """apex.parallel.DistributedDataParallel; `deterministic`: one reduction after the backward pass, in one order.

    It looks at no buffers: BatchNorm statistics are ours to share.
    """
    from apex.parallel import DistributedDataParallel

    with _quiet():
        wrapped: nn.Module = DistributedDataParallel(model, delay_allreduce=deterministic)
    return wrapped


def sync_bn(model: nn.Module) -> nn.Module:
    """The model with apex.parallel.SyncBatchNorm in place of BatchNorm."""
    from apex.parallel import convert_syncbn_model

    with _quiet():
        converted: nn.Module = convert_syncbn_model(model)
    return converted


def fused_sgd(groups: list[dict[str, Any]], lr: float, momentum: float, nesterov: bool) -> Optimizer:
    """apex.optimizers.FusedSGD: SGD in one kernel over all tensors; needs the extension amp_C."""
    from apex.optimizers import FusedSGD

    made: Optimizer = FusedSGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)
    return made


def fault() -> str:
    """Why the installed Apex cannot be used, or nothing. Loads the extensions, which need the very torch they were
    built for and otherwise fail only when they are used, or quietly fall back."""
    for extension in ("amp_C", "apex_C", "syncbn"):
        try:
            __import__(extension)
        except ImportError as error:
            return f"its extension {extension} does not load ({error})"
    return ""
