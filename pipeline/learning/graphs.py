"""The forward and the backward pass of a microbatch as one CUDA graph: one launch by the host instead of hundreds.

A graph is a recording of kernels with the addresses of their inputs and outputs. `Graphs` records one for each shape of
images and targets, at the first microbatch of that shape. For further ones it copies the inputs to the recorded
addresses and replays the graph. The kernels are those that torch starts without a graph; no compiler is needed.

The recording asks torch.autograd.grad for the gradients instead of calling `backward`. So no hook of a parameter runs
inside a graph: elastic's sums stay outside, and run after the replay. DistributedDataParallel exchanges gradients in
such hooks, so it is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pipeline.base.errors import Fault, UserError
from pipeline.learning.elastic import copy
from pipeline.learning.loop import Learner
from pipeline.learning.parallel import ParallelModel
from pipeline.learning.precision import Native

WARM_UPS = 3  # libraries choose algorithms and allocate workspace in their first calls, which a recording must not


@dataclass(frozen=True)
class Outputs:
    """The tensors to which a graph writes. Their addresses stay the same, and each replay overwrites them."""

    loss: Tensor  # []
    logits: Tensor  # [n, classes]
    gradients: list[Tensor | None]  # of the trainable parameters; None: the loss does not depend on this one


class Graph(Protocol):
    """A recording of work on a device."""

    def warm_up(self, work: Callable[[], Outputs]) -> None:
        """Do the work several times before it is recorded."""

    def capture(self, work: Callable[[], Outputs]) -> Outputs:
        """Record the work without doing it. Returns the tensors to which a replay writes."""

    def replay(self) -> None:
        """Do the recorded work on the current values at its addresses."""


class CudaGraph:
    """A graph of CUDA kernels on the current device. The graphs of one `factory` share memory and a stream."""

    @classmethod
    def factory(cls) -> Callable[[], Graph]:
        """A function that makes the graphs of one training.

        They share memory, because they are replayed one after another: all graphs together then need the memory of the
        largest one, and the gradients of each. cuBLAS reserves memory for each stream, so there is one.
        """

        @cache
        def shared() -> tuple[Any, torch.cuda.Stream]:  # with the first graph: before it no GPU is needed
            return torch.cuda.graph_pool_handle(), torch.cuda.Stream()

        return lambda: cls(*shared())

    def __init__(self, pool: Any, stream: torch.cuda.Stream) -> None:
        self._graph, self._pool, self._stream = torch.cuda.CUDAGraph(), pool, stream

    def warm_up(self, work: Callable[[], Outputs]) -> None:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                work()
        current.wait_stream(self._stream)

    def capture(self, work: Callable[[], Outputs]) -> Outputs:
        current = torch.cuda.current_stream()
        try:
            # thread_local: other threads pin memory meanwhile, and ask whether their work has ended.
            with torch.cuda.graph(self._graph, self._pool, self._stream, capture_error_mode="thread_local"):
                return work()
        finally:
            torch.cuda.set_stream(current)  # torch leaves another one after a failure

    def replay(self) -> None:
        self._graph.replay()


@dataclass(frozen=True)
class _Recording:
    """A graph with its inputs and outputs."""

    graph: Graph
    images: Tensor
    targets: Tensor
    outputs: Outputs


class Graphs:
    """`loop.eager` by graphs: the same interface and the same bits."""

    def __init__(self, make: Callable[[], Graph] | None = None) -> None:
        self._make = make or CudaGraph.factory()
        self._recordings: dict[tuple[torch.Size, torch.dtype, torch.Size], _Recording] = {}
        self._sums: list[Tensor] = []  # the gradients of earlier microbatches, during a replay

    def __call__(
        self, learner: Learner, parallel_model: ParallelModel, images: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add the gradients of a microbatch to those of the parameters. Returns its mean loss [] and logits
        [n, classes], which the next call overwrites.

        Raises UserError if the model cannot be recorded.
        """
        key = images.shape, targets.dtype, targets.shape
        if key not in self._recordings:
            self._recordings[key] = record(self._make(), learner, parallel_model, images, targets)
        recording, parameters = self._recordings[key], trainable_parameters(learner.model)
        pairs = [(p, g) for p, g in zip(parameters, recording.outputs.gradients, strict=True) if g is not None]
        earlier = [p.grad for p, _ in pairs if p.grad is not None]
        if earlier:  # they may be at the addresses to which the replay writes
            self._sums = self._sums or [torch.empty_like(gradient) for gradient in earlier]
            copy(self._sums, earlier)
        copy([recording.images, recording.targets], [images, targets])
        recording.graph.replay()
        if earlier:
            torch._foreach_add_([gradient for _, gradient in pairs], self._sums)
        for parameter, gradient in pairs:
            parameter.grad = gradient
        return recording.outputs.loss, recording.outputs.logits


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that a step changes."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def record(
    graph: Graph, learner: Learner, parallel_model: ParallelModel, images: Tensor, targets: Tensor
) -> _Recording:
    """Record a microbatch of this shape. Buffers and the state of random numbers do not change.

    Raises UserError if the model cannot be recorded. The process has to end then: torch does not leave the recording
    whole, so random numbers on the device fail, and some memory is not used again.
    """
    precision, buffers = learner.precision, list(learner.model.buffers())
    parameters = trainable_parameters(learner.model)
    assert isinstance(precision, Native)  # the params are refused otherwise: Apex reads values of every step
    static_images, static_targets = images.clone(), targets.clone()

    def work() -> Outputs:
        with precision.autocast():  # its cache of cast weights ends inside the recording
            logits = parallel_model.model(static_images)
            loss = learner.criterion(logits, static_targets)
        scaled_loss = precision.scaler.scale(loss / parallel_model.divisor)
        gradients = torch.autograd.grad(scaled_loss, parameters, allow_unused=True)
        return Outputs(loss.detach(), logits.detach(), copy_gradients(parameters, gradients))

    values = [buffer.clone() for buffer in buffers]
    with torch.random.fork_rng([images.device] if images.is_cuda else []):
        graph.warm_up(work)  # an error of the model itself is raised here, as it is
        try:
            outputs = graph.capture(work)
        except RuntimeError as error:
            raise _recording_error(error) from error
    copy(buffers, values)
    return _Recording(graph, static_images, static_targets, outputs)


def copy_gradients(parameters: list[nn.Parameter], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Copies of the gradients, as `backward` makes them: each in the memory format of its parameter.

    torch.autograd.grad returns them in the format in which they were computed. In another format, clipping adds in
    another order, and Apex's optimizers, which read by address, would mix up the elements.
    """
    copies = [None if g is None else torch.empty_like(p) for p, g in zip(parameters, gradients, strict=True)]
    copy([tensor for tensor in copies if tensor is not None], [g for g in gradients if g is not None])
    return copies


def _recording_error(error: BaseException) -> Exception:
    """The error for a model that cannot be recorded. torch raises another error at the end of a recording.

    The first error has the reason. torch.OutOfMemoryError is returned as it is.
    """
    while error.__context__ is not None:
        error = error.__context__
    if isinstance(error, torch.OutOfMemoryError):
        return error
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return UserError(Fault("train.cuda_graphs", "true", "pair", f"this model cannot be recorded ({reason})", "false"))
