"""Passes of images through the model as CUDA graphs: one launch by the host instead of hundreds.

A graph is a recording of kernels with the addresses of their inputs and outputs. `Graphs` records one for each shape of
images and targets, at the first microbatch of that shape, and one for the batches of a validation. For further ones it
copies the inputs to the recorded addresses and replays the graph. The kernels are those that torch starts without a
graph; no compiler is needed.

The recording asks torch.autograd.grad for the gradients instead of calling `backward`. So no hook of a parameter runs
inside a graph: elastic's sums stay outside, and run after the replay. DistributedDataParallel exchanges gradients in
such hooks, so it is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from pipeline.base.errors import Fault, UserError
from pipeline.learning.elastic import copy
from pipeline.learning.loop import EAGER, Learner
from pipeline.learning.parallel import ParallelModel
from pipeline.learning.precision import Native, Precision

WARM_UPS = 3  # libraries choose algorithms and allocate workspace in their first calls, which a recording must not

Made = TypeVar("Made")  # the tensors to which a graph writes: their addresses stay, and each replay overwrites them


@dataclass(frozen=True)
class Microbatch:
    """What the forward and the backward pass of a microbatch write."""

    loss: Tensor  # []
    logits: Tensor  # [n, classes]
    gradients: list[Tensor | None]  # of the trainable parameters; None: the loss does not depend on this one


class Graph(Protocol):
    """A recording of work on a device."""

    def warm_up(self, work: Callable[[], object]) -> None:
        """Do the work several times before it is recorded."""

    def capture(self, work: Callable[[], Made]) -> Made:
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

    def warm_up(self, work: Callable[[], object]) -> None:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                work()
        current.wait_stream(self._stream)

    def capture(self, work: Callable[[], Made]) -> Made:
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
class _Recording(Generic[Made]):
    """A graph with its inputs and outputs."""

    graph: Graph
    inputs: list[Tensor]
    outputs: Made

    def replay(self, *inputs: Tensor) -> Made:
        """Do the work for these inputs."""
        copy(self.inputs, inputs)
        self.graph.replay()
        return self.outputs


class Graphs:
    """`loop.Passes` by graphs, with the bits of `loop.Eager`."""

    def __init__(self, make: Callable[[], Graph] | None = None) -> None:
        self._make = make or CudaGraph.factory()
        self._microbatches: dict[tuple[torch.Size, torch.dtype, torch.Size], _Recording[Microbatch]] = {}
        self._batches: dict[torch.Size, _Recording[Tensor]] = {}  # of an evaluation
        self._sums: list[Tensor] = []  # the gradients of earlier microbatches, during a replay

    def gradients(
        self, learner: Learner, parallel_model: ParallelModel, images: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `loop.Passes` says; the next call overwrites loss and logits.

        Raises UserError if the model cannot be recorded.
        """
        precision, parameters = learner.precision, trainable_parameters(learner.model)
        assert isinstance(precision, Native)  # the params are refused otherwise: Apex reads values of every step

        key = images.shape, targets.dtype, targets.shape
        if key not in self._microbatches:

            def work(images: Tensor, targets: Tensor) -> Microbatch:
                with precision.autocast():  # its cache of cast weights ends inside the recording
                    logits = parallel_model.model(images)
                    loss = learner.criterion(logits, targets)
                scaled_loss = precision.scaler.scale(loss / parallel_model.divisor)
                gradients = torch.autograd.grad(scaled_loss, parameters, allow_unused=True)
                return Microbatch(loss.detach(), logits.detach(), copy_gradients(parameters, gradients))

            self._microbatches[key] = record(self._make(), learner.model, work, images, targets)
        recording = self._microbatches[key]
        pairs = [(p, g) for p, g in zip(parameters, recording.outputs.gradients, strict=True) if g is not None]
        earlier = [p.grad for p, _ in pairs if p.grad is not None]
        if earlier:  # they may be at the addresses to which the replay writes
            self._sums = self._sums or [torch.empty_like(gradient) for gradient in earlier]
            copy(self._sums, earlier)
        made = recording.replay(images, targets)
        if earlier:
            torch._foreach_add_([gradient for _, gradient in pairs], self._sums)
        for parameter, gradient in pairs:
            parameter.grad = gradient
        return made.loss, made.logits

    def outputs(self, model: nn.Module, precision: Precision, images: Tensor) -> Tensor:
        """As `loop.Passes` says. All calls are for one model. Raises UserError if the model cannot be recorded."""
        if images.shape not in self._batches:

            def work(images: Tensor) -> Tensor:
                return EAGER.outputs(model, precision, images)

            self._batches[images.shape] = record(self._make(), model, work, images)
        return self._batches[images.shape].replay(images)


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that a step changes."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def record(graph: Graph, model: nn.Module, work: Callable[..., Made], *inputs: Tensor) -> _Recording[Made]:
    """Record `work(*inputs)`, a pass through the model. Buffers and the state of random numbers do not change.

    Raises UserError if the model cannot be recorded. The process has to end then: torch does not leave the recording
    whole, so random numbers on the device fail, and some memory is not used again.
    """
    static, buffers = [tensor.clone() for tensor in inputs], list(model.buffers())
    values = [buffer.clone() for buffer in buffers]
    with torch.random.fork_rng([inputs[0].device] if inputs[0].is_cuda else []):
        graph.warm_up(lambda: work(*static))  # an error of the model itself is raised here, as it is
        try:
            outputs = graph.capture(lambda: work(*static))
        except RuntimeError as error:
            raise _recording_error(error) from error
    copy(buffers, values)
    return _Recording(graph, static, outputs)


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
