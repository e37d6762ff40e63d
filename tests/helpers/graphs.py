"""A CUDA graph's stand-in on the CPU: everything but the recording and the replay is real."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from pipeline.learning.graphs import WARM_UPS, Made, Microbatch


class _NoReading(TorchDispatchMode):
    """Refuses what a recording refuses: to wait for the device, in order to read a value of it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket._qualified_op_name
        if name in ("aten::_local_scalar_dense", "aten::nonzero"):
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        return func(*args, **(kwargs or {}))


class RehearsedGraph:
    """Does the work again at every replay, into the tensors of the capture.

    As on a GPU, a capture computes nothing: its tensors hold no number before the first replay, and buffers stay. A
    replay uses the addresses of the capture: it fails if a weight or a buffer of the model has moved.
    """

    captured = replayed = 0  # over all instances

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def warm_up(self, work: Callable[[], object]) -> None:
        for _ in range(WARM_UPS):
            work()

    def capture(self, work: Callable[[], Made]) -> Made:
        before = [buffer.clone() for buffer in self._model.buffers()]
        with _NoReading():
            outputs = work()
        with torch.no_grad():
            for buffer, value in zip(self._model.buffers(), before, strict=True):
                buffer.copy_(value)
            for output in self._tensors(outputs):
                output.fill_(torch.nan)
        self._outputs, self._work, self._addresses = outputs, work, self._where()
        RehearsedGraph.captured += 1
        return outputs

    def replay(self) -> None:
        """Do the work again. Launches that are counted around it are those of the host, so these are not counted."""
        RehearsedGraph.replayed += 1
        with _disable_current_modes():
            self._replay()

    def _replay(self) -> None:
        assert self._where() == self._addresses, "a weight or a buffer is at another address than when it was recorded"
        for output, value in zip(self._tensors(self._outputs), self._tensors(self._work()), strict=True):
            output.copy_(value)

    def _where(self) -> list[int]:
        return [tensor.data_ptr() for tensor in (*self._model.parameters(), *self._model.buffers())]

    @staticmethod
    def _tensors(outputs: object) -> list[Tensor]:
        if isinstance(outputs, Microbatch):
            return [outputs.loss, outputs.logits, *(g for g in outputs.gradients if g is not None)]
        assert isinstance(outputs, Tensor)
        return [outputs]
