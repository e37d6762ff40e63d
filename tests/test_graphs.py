"""CUDA graphs of microbatches, rehearsed on the CPU: all but recording and replay (tests/helpers/graphs.py) is real.

tests/gpu/test_graphs.py has the same comparison with real graphs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from pipeline.engine import loop
from pipeline.engine.choices import GRADIENTS, OPTIMIZERS, PARALLELS, PRECISIONS
from pipeline.engine.ema import Ema
from pipeline.engine.graphs import Graphs
from pipeline.engine.loop import Batch, Learner, Totals
from pipeline.models import network
from tests.helpers.graphs import RehearsedGraph
from tests.helpers.refusals import refuses
from tests.helpers.trainings import ALONE

CLASSES = 3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors are tiny: threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    RehearsedGraph.captured = RehearsedGraph.replayed = 0
    yield
    torch.set_num_threads(before)


def batches(first: int, last: int, sides: tuple[int, ...] = (32,), mixed: bool = False) -> Iterator[Batch]:
    """Batches of eight noise images for these steps. The side is another one in every step, in turn."""
    for step in range(first, last):
        random = torch.Generator().manual_seed(step)
        side = sides[step % len(sides)]
        images = torch.randn(8, 3, side, side, generator=random)
        labels = torch.randint(CLASSES, (8,), generator=random)
        shares = torch.rand(8, CLASSES, generator=random)
        yield Batch(step, images, labels, shares / shares.sum(1, keepdim=True) if mixed else labels, seed=100 * step)


def learner_of(model: str, precision: str, frozen: bool = False) -> Learner:
    net = network.build(model, CLASSES, 0)
    if frozen:
        network.freeze_backbone(net)
    groups = network.parameter_groups(net, 1e-3, False)
    optimizer = OPTIMIZERS["sgd"](groups, 0.01, 0.9, True)
    return Learner(net, nn.CrossEntropyLoss(), optimizer, PRECISIONS[precision]("cpu"), Ema.create(net, 0.9), 0.1)


def with_graphs(learner: Learner) -> Learner:
    """The learner with rehearsed graphs."""
    return replace(learner, gradients=Graphs(partial(RehearsedGraph, learner.model)))


def assert_equal(*results: Iterable[Tensor]) -> None:
    """All tensors of both have the same bits."""
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def everything(learner: Learner, totals: Totals, stream: Iterator[Batch], parallel: str, parts: int) -> list[Tensor]:
    """All tensors that a training changes, after the steps. In their middle the weights are averaged and put back."""
    parallel_model = PARALLELS[parallel](learner.model, ALONE, True, parts)
    for batch in loop.train(learner, parallel_model, stream, [0.01] * 10, totals):
        if batch.step == 1:
            with learner.ema.swap():
                list(loop.logits(learner.model, [batch.images], learner.precision))
    scale = torch.tensor(learner.precision.state_dict(learner.optimizer).get("scale", 1.0))
    momenta = [state["momentum_buffer"] for state in learner.optimizer.state.values()]
    return [*learner.model.state_dict().values(), *learner.ema.averages, *momenta, totals.sums, scale]


FURTHER = pytest.mark.slow("the same with other numbers; make test has fp32, alone, accumulated and elastic")
CASES = [
    *(pytest.param("resnet18", precision, "single", 1, False, marks=FURTHER) for precision in ("fp32", "bf16", "fp16")),
    ("mobilenet_v3_small", "fp32", "single", 1, False),  # has dropout
    ("resnet18", "fp32", "single", 2, False),  # accumulates
    ("resnet18", "fp32", "single", 1, True),  # only the head has gradients
    ("resnet18", "fp32", "elastic", 4, False),
    pytest.param("mobilenet_v3_small", "bf16", "elastic", 2, False, marks=FURTHER),
]


@pytest.mark.parametrize(("model", "precision", "parallel", "parts", "frozen"), CASES)
def test_graphs_train_the_bits_of_eager(model: str, precision: str, parallel: str, parts: int, frozen: bool) -> None:
    """Weights, statistics, moments, averages, totals and the loss scale; one graph serves all microbatches."""
    learners = learner_of(model, precision, frozen), with_graphs(learner_of(model, precision, frozen))
    assert_equal(
        *(everything(each, Totals.zero(ALONE.device, parts), batches(0, 4), parallel, parts) for each in learners)
    )
    assert RehearsedGraph.captured == 1
    assert RehearsedGraph.replayed == 4 * parts


def test_every_shape_has_its_own_graph() -> None:
    """Images that grow, and targets of mixed images: each is recorded once."""
    results = []
    for learner in (learner_of(name := "shufflenet_v2_x0_5", "fp32"), with_graphs(learner_of(name, "fp32"))):
        totals = Totals.zero(ALONE.device, 1)
        everything(learner, totals, batches(0, 4, sides=(32, 40)), "single", 1)
        results.append(everything(learner, totals, batches(4, 7, mixed=True), "single", 1))
    assert_equal(*results)
    assert RehearsedGraph.captured == 3


def test_a_restored_state_is_where_the_graph_reads_it() -> None:
    """`load_state_dict` copies into the recorded weights: the following steps are those of the restored state."""
    learner = with_graphs(learner_of("shufflenet_v2_x0_5", "fp16"))
    once = [value.clone() for value in everything(learner, Totals.zero(ALONE.device, 1), batches(0, 2), "single", 1)]
    fresh = learner_of("shufflenet_v2_x0_5", "fp16")
    learner.load_state_dict(fresh.state_dict())
    learner.optimizer.state.clear()
    again = everything(learner, Totals.zero(ALONE.device, 1), batches(0, 2), "single", 1)
    assert_equal(once, again)


class Shared(nn.Module):
    """A model with two parameters that enter as a sum: autograd computes one gradient for both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.full((CLASSES, 4), value)) for value in (0.1, 0.2))

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.linear(images, self.first + self.second)


def plain_learner(net: nn.Module, clip_norm: float) -> Learner:
    groups = [{"params": list(net.parameters()), "scale": 1.0, "weight_decay": 0.0}]
    optimizer = OPTIMIZERS["sgd"](groups, 0.1, 0.9, True)
    return Learner(net, nn.CrossEntropyLoss(), optimizer, PRECISIONS["fp32"]("cpu"), Ema.create(net, 0), clip_norm)


def vectors(count: int) -> Iterator[Batch]:
    for step in range(count):
        labels = torch.arange(8) % CLASSES
        yield Batch(step, torch.randn(8, 4, generator=torch.Generator().manual_seed(step)), labels, labels, 0)


def test_no_two_gradients_share_memory() -> None:
    """Clipping changes gradients where they are: a shared one would be clipped twice."""
    learners = plain_learner(Shared(), 0.01), with_graphs(plain_learner(Shared(), 0.01))
    for learner in learners:
        totals, model = Totals.zero(ALONE.device, 1), PARALLELS["single"](learner.model, ALONE, True, 1)
        assert len(list(loop.train(learner, model, vectors(3), [0.1] * 3, totals))) == 3
    assert_equal(*(learner.model.parameters() for learner in learners))


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
    learner, first = plain_learner(Reordered(), 0.0), next(batches(0, 1))
    weight = next(learner.model.parameters())
    loss = nn.functional.cross_entropy(learner.model(first.images), first.labels)
    computed = torch.autograd.grad(loss, weight)[0]
    assert computed.stride() != weight.stride()
    model = PARALLELS["single"](learner.model, ALONE, True, 1)
    Graphs(partial(RehearsedGraph, learner.model))(learner, model, first.images, first.targets)
    assert weight.grad is not None
    assert weight.grad.stride() == weight.stride()
    assert torch.equal(weight.grad, computed)


class Reading(nn.Module):
    """A model whose next kernel depends on a value of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.layer(images)
        return outputs if outputs.sum().item() > 0 else -outputs


def test_a_model_that_reads_a_value_is_refused_by_name() -> None:
    """Its recording would go on with the value of one batch for ever. An error of the model itself stays as it is."""
    learner = with_graphs(plain_learner(Reading(), 0.0))
    model, totals = PARALLELS["single"](learner.model, ALONE, True, 1), Totals.zero(ALONE.device, 1)
    with refuses(("train.cuda_graphs", "pair")):
        list(loop.train(learner, model, vectors(1), [0.1], totals))
    learner = with_graphs(plain_learner(nn.Linear(5, CLASSES), 0.0))
    model = PARALLELS["single"](learner.model, ALONE, True, 1)
    with pytest.raises(RuntimeError, match="shapes"):
        list(loop.train(learner, model, vectors(1), [0.1], totals))
    assert GRADIENTS[False]() is loop.eager  # so a training without graphs has no further call
