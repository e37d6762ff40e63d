"""CUDA graphs of microbatches, rehearsed on the CPU: all but recording and replay (tests/helpers/graphs.py) is real."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.learning import determinism, loop
from pipeline.learning.choices import OPTIMIZERS, PARALLELS, PASSES, PRECISIONS
from pipeline.learning.ema import Ema
from pipeline.learning.graphs import Graphs
from pipeline.learning.loop import Learner, Totals
from pipeline.loader.batches import Batch
from tests.gpu import test_graphs as of_gpu
from tests.helpers.graphs import RehearsedGraph
from tests.helpers.trainings import ALONE

CLASSES = 3


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[None]:
    """This process as a rank of tests/gpu: deterministic, in a group of its own."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    RehearsedGraph.captured = RehearsedGraph.replayed = 0
    determinism.make_deterministic(1, True)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    determinism.make_deterministic(*before)


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("test_bits", (precision, "single", "1")) for precision in ("fp32", "bf16", "fp16")),
        *(("test_bits", (*how, "4")) for how in (("fp32", "single"), ("fp32", "elastic"), ("bf16", "elastic"))),
        *(("test_shapes", (layout,)) for layout in ("channels_last", "contiguous")),
        ("test_restored", ()), ("test_frozen", ()), ("test_refusal", ()),
    ],
    ids=str,
)  # fmt: skip
def test_graphs_train_the_bits_of_eager(name: str, arguments: tuple[str, ...]) -> None:
    """The body of a test for a GPU passes with rehearsed graphs."""
    getattr(of_gpu, name)(ALONE, *arguments)


class Shared(nn.Module):
    """A model with two parameters that enter as a sum: autograd computes one gradient for both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.full((CLASSES, 4), value)) for value in (0.1, 0.2))

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.linear(images, self.first + self.second)


def learner_of(net: nn.Module, clip_norm: float, has_graphs: bool) -> Learner:
    groups = [{"params": list(net.parameters()), "scale": 1.0, "weight_decay": 0.0}]
    optimizer = OPTIMIZERS["sgd"](groups, 0.1, 0.9, True)
    passes = Graphs(partial(RehearsedGraph, net)) if has_graphs else loop.EAGER
    precision = PRECISIONS["fp32"]("cpu")
    return Learner(net, nn.CrossEntropyLoss(), optimizer, precision, Ema.create(net, 0), clip_norm, passes)


def vectors(count: int) -> Iterator[Batch]:
    for step in range(count):
        labels = torch.arange(8) % CLASSES
        yield Batch(step, torch.randn(8, 4, generator=torch.Generator().manual_seed(step)), labels, labels, 0)


def test_no_two_gradients_share_memory() -> None:
    """Clipping changes gradients where they are: a shared one would be clipped twice."""
    weights = []
    for has_graphs in (False, True):
        learner, totals = learner_of(Shared(), 0.01, has_graphs), Totals.zero(ALONE.device, 1)
        model = PARALLELS["single"](learner.model, ALONE, True, 1)
        assert len(list(loop.train(learner, model, vectors(3), [0.1] * 3, totals))) == 3
        weights.append(nn.utils.parameters_to_vector(learner.model.parameters()))
    assert torch.equal(*weights)


class Reordered(nn.Module):
    """A convolution of images in another memory format than its weights', as in ConvNeXt's downsampling."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 64, 2, 2)
        self.last = nn.Linear(64, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        ordered = images.contiguous(memory_format=torch.channels_last)
        outputs: Tensor = self.last(self.convolution(ordered).mean((2, 3)))
        return outputs


def test_gradients_have_the_memory_format_of_their_weights() -> None:
    """As after `backward`. Clipping adds in the order of memory, and Apex's optimizers go by address."""
    learner, images, labels = learner_of(Reordered(), 0.0, True), torch.randn(8, 3, 32, 32), torch.arange(8) % CLASSES
    weight = next(learner.model.parameters())
    computed = torch.autograd.grad(nn.functional.cross_entropy(learner.model(images), labels), weight)[0]
    assert computed.stride() != weight.stride()
    learner.passes.gradients(learner, PARALLELS["single"](learner.model, ALONE, True, 1), images, labels)
    assert weight.grad is not None
    assert weight.grad.stride() == weight.stride()
    assert torch.equal(weight.grad, computed)


def test_an_error_of_the_model_stays_as_it_is() -> None:
    """It does not become the refusal of a model that reads a value. Without graphs there is no further call."""
    learner, totals = learner_of(nn.Linear(5, CLASSES), 0.0, True), Totals.zero(ALONE.device, 1)
    model = PARALLELS["single"](learner.model, ALONE, True, 1)
    with pytest.raises(RuntimeError, match="shapes"):
        list(loop.train(learner, model, vectors(1), [0.1], totals))
    assert isinstance(PASSES[False](), loop.Eager)
