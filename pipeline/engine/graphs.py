"""The forward and the backward pass of a microbatch as one CUDA graph: the host starts one thing instead of hundreds.

A graph is a recording of kernels with the addresses of their inputs and outputs. `Graphs` records one for each shape of
images and targets, when it first meets the shape. For every further microbatch it copies the inputs to the recorded
addresses and replays the graph. The kernels are those that torch starts without a graph; no compiler is needed.

The recording asks torch.autograd.grad for the gradients instead of calling `backward`. So no hook of a parameter runs
inside a graph: elastic's sums stay outside, and run after the replay. DistributedDataParallel exchanges gradients in
such hooks, so it is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pipeline.base.errors import Fault, UserError
from pipeline.engine.elastic import copy
from pipeline.engine.loop import Learner
from pipeline.engine.parallel import ParallelModel
from pipeline.engine.precision import Native

WARM_UPS = 3  # libraries choose algorithms and allocate workspace in their first calls, which a recording must not


@dataclass(frozen=True)
class Outputs:
    """What a graph writes, at addresses that stay the same. A replay overwrites it."""

    loss: Tensor  # []
    logits: Tensor  # [n, classes]
    gradients: list[Tensor | None]  # of the trained parameters; None: the loss does not depend on this one


class Graph(Protocol):
    """A recording of work on a device."""

    def warm_up(self, work: Callable[[], Outputs]) -> None:
        """Do the work some times, as it will be recorded."""

    def capture(self, work: Callable[[], Outputs]) -> Outputs:
        """Record the work without doing it. Returns what a replay will fill."""

    def replay(self) -> None:
        """Do the recorded work on the values that now are at its addresses."""


class CudaGraph:
    """A graph of CUDA kernels on the current device. The graphs of one `maker` share their memory and their stream."""

    @classmethod
    def maker(cls) -> Callable[[], Graph]:
        """What makes the graphs of one training.

        They share memory, because they are replayed one after another: a graph for images of another side then takes
        no more than the largest one, and its gradients. cuBLAS keeps memory for each stream, so there is one.
        """
        pool: list[Any] = []  # made with the first graph: only then a GPU is needed

        def make() -> Graph:
            pool[:] = pool or [torch.cuda.graph_pool_handle(), torch.cuda.Stream()]
            return cls(*pool)

        return make

    def __init__(self, pool: Any, stream: torch.cuda.Stream) -> None:
        self._graph, self._pool, self._stream = torch.cuda.CUDAGraph(), pool, stream

    def warm_up(self, work: Callable[[], Outputs]) -> None:
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                work()
        here.wait_stream(self._stream)

    def capture(self, work: Callable[[], Outputs]) -> Outputs:
        here = torch.cuda.current_stream()
        try:
            # thread_local: other threads pin memory meanwhile, and ask whether their work has ended.
            with torch.cuda.graph(self._graph, self._pool, self._stream, capture_error_mode="thread_local"):
                return work()
        finally:
            torch.cuda.set_stream(here)  # torch leaves another one after a failure

    def replay(self) -> None:
        self._graph.replay()


@dataclass(frozen=True)
class _Recorded:
    """A graph with the inputs that it reads."""

    graph: Graph
    images: Tensor
    targets: Tensor
    outputs: Outputs


class Graphs:
    """`loop.eager` by graphs: the same interface, and to be the same bits."""

    def __init__(self, make: Callable[[], Graph] | None = None) -> None:
        self._make = make or CudaGraph.maker()
        self._recorded: dict[tuple[torch.Size, torch.dtype, torch.Size], _Recorded] = {}

    def __call__(
        self, learner: Learner, parallel_model: ParallelModel, images: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add the gradients of a microbatch to those of the parameters. Returns its mean loss [] and logits
        [n, classes], which the next call overwrites.

        Raises UserError if the model cannot be recorded.
        """
        key = images.shape, targets.dtype, targets.shape
        if key not in self._recorded:
            self._recorded[key] = record(self._make(), learner, parallel_model, images, targets)
        recorded, parameters = self._recorded[key], trained(learner.model)
        # The gradients of an earlier microbatch lie where the replay writes.
        earlier = [None if p.grad is None else p.grad.clone() for p in parameters]
        copy([recorded.images, recorded.targets], [images, targets])
        recorded.graph.replay()
        for parameter, sum_before, gradient in zip(parameters, earlier, recorded.outputs.gradients, strict=True):
            parameter.grad = gradient if sum_before is None or gradient is None else sum_before.add_(gradient)
        return recorded.outputs.loss, recorded.outputs.logits


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that a step changes."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def record(graph: Graph, learner: Learner, parallel_model: ParallelModel, images: Tensor, targets: Tensor) -> _Recorded:
    """Record a microbatch of this shape. Buffers and random numbers are afterwards as they were before.

    Raises UserError if the model cannot be recorded.
    """
    precision, buffers, parameters = learner.precision, list(learner.model.buffers()), trained(learner.model)
    assert isinstance(precision, Native)  # the params are refused otherwise: Apex reads values of every step
    own_images, own_targets = images.clone(), targets.clone()

    def work() -> Outputs:
        with precision.autocast():  # its cache of cast weights ends inside the recording
            logits = parallel_model.model(own_images)
            loss = learner.criterion(logits, own_targets)
        scaled = precision.scaler.scale(loss / parallel_model.divisor)
        gradients = torch.autograd.grad(scaled, parameters, allow_unused=True)
        return Outputs(loss.detach(), logits.detach(), in_own_memory(parameters, gradients))

    before = [buffer.clone() for buffer in buffers]
    with torch.random.fork_rng([images.device] if images.is_cuda else []):
        graph.warm_up(work)  # an error here has nothing to do with graphs
        try:
            outputs = graph.capture(work)
        except RuntimeError as error:
            raise _not_recorded(error) from error
    copy(buffers, before)
    return _Recorded(graph, own_images, own_targets, outputs)


def in_own_memory(parameters: list[nn.Parameter], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The gradients as `backward` leaves them: each in memory of its own, in the memory format of its parameter.

    torch.autograd.grad gives them as they were computed. In another order, clipping adds in another order, and
    Apex's optimizers, which go by address, would mix them up.
    """
    own = [None if g is None else torch.empty_like(p) for p, g in zip(parameters, gradients, strict=True)]
    copy([tensor for tensor in own if tensor is not None], [g for g in gradients if g is not None])
    return own


def _not_recorded(error: BaseException) -> Exception:
    """The error for a model that cannot be recorded. What torch raises at the end of a recording hides the first one.

    Too little memory stays what it is.
    """
    while error.__context__ is not None:
        error = error.__context__
    if isinstance(error, torch.OutOfMemoryError):
        return error
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return UserError(Fault("train.cuda_graphs", "true", "pair", f"this model cannot be recorded ({reason})", "false"))
