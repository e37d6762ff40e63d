"""CUDA graphs of microbatches, rehearsed on the CPU: all but recording and replay (tests/helpers/graphs.py) is real.

tests/gpu/test_graphs.py has the same comparison with real graphs.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from pipeline.base.errors import UserError
from pipeline.engine import loop
from pipeline.engine.choices import GRADIENTS, OPTIMIZERS, PARALLELS, PRECISIONS
from pipeline.engine.ema import Ema
from pipeline.engine.graphs import Graphs
from pipeline.engine.loop import Batch, Learner, Totals
from pipeline.models import network
from tests.helpers.graphs import RehearsedGraph
from tests.test_steps import ALONE

CLASSES = 3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors are tiny: threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    RehearsedGraph.captured = 0
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
    optimizer = OPTIMIZERS["sgd"](groups, 0.01, 0.9, True, (0.9, 0.999))
    return Learner(net, nn.CrossEntropyLoss(), optimizer, PRECISIONS[precision]("cpu"), Ema.of(net, 0.9), 1.0)


def everything(learner: Learner, totals: Totals, stream: Iterator[Batch], parallel: str, parts: int) -> list[Tensor]:
    """All tensors that a training changes, after the steps. In their middle the weights are averaged and put back."""
    parallel_model = PARALLELS[parallel](learner.model, ALONE, True, parts)
    for batch in loop.train(learner, parallel_model, stream, [0.01] * 10, totals):
        if batch.step == 1:
            with learner.ema.applied():
                list(loop.logits(learner.model, [batch.images], learner.precision))
    scale = torch.tensor(learner.precision.state_dict(learner.optimizer).get("scale", 1.0))
    momenta = [state["momentum_buffer"] for state in learner.optimizer.state.values()]
    return [*learner.model.state_dict().values(), *learner.ema.averages, *momenta, totals.sums, scale]


CASES = [
    *(("resnet18", precision, "single", 1) for precision in ("fp32", "bf16", "fp16")),
    ("mobilenet_v3_small", "fp32", "single", 1),  # has dropout
    ("resnet18", "fp32", "single", 2),  # accumulates
    ("resnet18", "fp32", "elastic", 4),
    ("mobilenet_v3_small", "bf16", "elastic", 2),
]


@pytest.mark.parametrize(("model", "precision", "parallel", "parts"), CASES)
def test_graphs_train_the_bits_of_eager(model: str, precision: str, parallel: str, parts: int) -> None:
    """Weights, statistics, moments, averages, totals and the loss scale; one graph serves all microbatches."""
    plain = learner_of(model, precision)
    graphed = learner_of(model, precision)
    graphed = replace(graphed, gradients=Graphs(partial(RehearsedGraph, graphed.model)))
    expected, found = (
        everything(learner, Totals.zero(ALONE.device, parts), batches(0, 4), parallel, parts)
        for learner in (plain, graphed)
    )
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
    assert RehearsedGraph.captured == 1


def test_every_shape_has_its_own_graph() -> None:
    """Images that grow, and targets of mixed images: each is recorded once."""
    plain, graphed = learner_of("resnet18", "fp32"), learner_of("resnet18", "fp32")
    graphed = replace(graphed, gradients=Graphs(partial(RehearsedGraph, graphed.model)))
    results = []
    for learner in (plain, graphed):
        totals = Totals.zero(ALONE.device, 1)
        everything(learner, totals, batches(0, 4, sides=(32, 40)), "single", 1)
        results.append(everything(learner, totals, batches(4, 7, mixed=True), "single", 1))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert RehearsedGraph.captured == 3


def test_a_frozen_backbone_is_not_part_of_a_graphs_gradients() -> None:
    """Only the head has gradients, and the weights are those without graphs."""
    plain, graphed = learner_of("resnet18", "fp32", frozen=True), learner_of("resnet18", "fp32", frozen=True)
    graphed = replace(graphed, gradients=Graphs(partial(RehearsedGraph, graphed.model)))
    expected, found = (
        everything(learner, Totals.zero(ALONE.device, 1), batches(0, 3), "single", 1) for learner in (plain, graphed)
    )
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))


def test_a_restored_state_is_where_the_graph_reads_it() -> None:
    """`load_state_dict` copies into the recorded weights: the following steps are those of the restored state."""
    learner = learner_of("resnet18", "fp16")
    learner = replace(learner, gradients=Graphs(partial(RehearsedGraph, learner.model)))
    once = [value.clone() for value in everything(learner, Totals.zero(ALONE.device, 1), batches(0, 2), "single", 1)]
    fresh = learner_of("resnet18", "fp16")
    learner.load_state_dict(fresh.state_dict())
    learner.optimizer.state.clear()
    again = everything(learner, Totals.zero(ALONE.device, 1), batches(0, 2), "single", 1)
    assert all(torch.equal(*pair) for pair in zip(once, again, strict=True))


class Reading(nn.Module):
    """A model whose next kernel depends on a value of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.layer(images)
        return outputs if outputs.sum().item() > 0 else -outputs


def test_a_model_that_reads_a_value_is_refused_by_name() -> None:
    """Its recording would go on with the value of one batch for ever."""
    net = Reading()
    optimizer = OPTIMIZERS["sgd"](
        [{"params": list(net.parameters()), "scale": 1.0, "weight_decay": 0.0}], 0.1, 0.9, True, (0.9, 0.999)
    )
    learner = Learner(net, nn.CrossEntropyLoss(), optimizer, PRECISIONS["fp32"]("cpu"), Ema.of(net, 0), 0.0)
    learner = replace(learner, gradients=Graphs(partial(RehearsedGraph, net)))
    images, labels = torch.randn(8, 4), torch.zeros(8, dtype=torch.int64)
    stream = iter([Batch(0, images, labels, labels, 0)])
    with pytest.raises(UserError, match=r"train.cuda_graphs: true: this model cannot be recorded .*; allowed for it: "):
        list(
            loop.train(
                learner,
                PARALLELS["single"](net, ALONE, True, 1),
                stream,
                [0.1],
                Totals.zero(ALONE.device, 1),
            )
        )


def test_params_choose_graphs() -> None:
    """`false` is the loop's own function, so a training without graphs has no further call."""
    assert GRADIENTS[False]() is loop.eager
    assert isinstance(GRADIENTS[True](), Graphs)
