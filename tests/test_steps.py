"""Training steps of a small model, with the engine's loop: accumulation, clipping, moving average, learning rate."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.learning import choices, loop
from pipeline.learning.choices import LOSSES, OPTIMIZERS, PARALLELS, PRECISIONS
from pipeline.learning.ema import Ema
from pipeline.learning.loop import Learner, Totals
from pipeline.loader.batches import Batch
from pipeline.models import network
from tests.helpers.ranks import run_ranks
from tests.helpers.trainings import ALONE
from tests.ranks.steps import small_model


def some_batches(count: int) -> Iterator[Batch]:
    """Batches of 12 noise images, for steps 0 to count - 1."""
    random = torch.Generator().manual_seed(1)
    for step in range(count):
        images, labels = (torch.randn(12, 3, 12, 12, generator=random), torch.randint(3, (12,), generator=random))
        yield Batch(step, images, labels, labels, 0)


def learner_of(net: nn.Module, precision: str = "fp32", clip_norm: float = 0.0, ema_decay: float = 0.0) -> Learner:
    """A learner with plain SGD."""
    optimizer = OPTIMIZERS["sgd"](network.parameter_groups(net, 0.0, False), 1.0, 0.0, False)
    ema = Ema.create(net, ema_decay)
    return Learner(net, nn.CrossEntropyLoss(), optimizer, PRECISIONS[precision]("cpu"), ema, clip_norm)


def weights_after_each_step(rates: list[float], **options: Any) -> tuple[list[Tensor], Ema]:
    """All weights as one vector, before the first step and after every one; and their moving average."""
    learner = learner_of(net := small_model(), **options)
    parallel_model = PARALLELS["single"](net, ALONE, True, 1)
    steps = loop.train(learner, parallel_model, some_batches(len(rates)), rates, Totals.zero(ALONE.device, 1))
    return [as_vector(net), *(as_vector(net) for _ in steps)], learner.ema


def as_vector(net: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(net.parameters()).detach().clone()


def assert_close(result: dict[str, Any], expected: dict[str, Any]) -> None:
    """Two trainings have the same counts, and loss and weights that differ by rounding alone."""
    assert result["sums"][1:].tolist() == expected["sums"][1:].tolist()
    assert result["sums"][0] == pytest.approx(expected["sums"][0].item(), rel=1e-6)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(result["weights"][name], weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_weighted_classes_train_the_same_on_any_number_of_processes_and_parts(loss: str, tmp_path: Path) -> None:
    """Two processes, accumulation and elastic agree with one, though a microbatch may lack the rare classes.

    ddp exchanges gradients as often with accumulation as without.
    """
    weighted = {"loss": loss, "class_weights": "balanced"}
    for size, ways in ((1, ["single"]), (2, ["ddp", "elastic"])):
        cases = [
            ("small", way, "fp32", "sgd", {**weighted, "microbatches": size * parts, "save": f"{way}-{parts}"})
            for way, parts in product(ways, (1, 2, 3))
        ]
        run_ranks(size, "steps", str(tmp_path), "8", "1", "12", json.dumps(cases))
    results = {path.stem: torch.load(path) for path in tmp_path.glob("*.pt")}
    assert len(results) == 9
    for name, result in results.items():
        assert result["exchanges"] == 8 * name.startswith("ddp")  # one bucket a step: earlier parts exchange nothing
        assert_close(result, results["single-1"])


@pytest.mark.parametrize(("precision", "exact"), [("fp32", 1e-4), ("fp16", 0.02)])
def test_the_clipped_gradient_is_the_unscaled_one(precision: str, exact: float) -> None:
    """With a rate of 1 a step moves the weights by the gradient: the plain one, cut to the norm, whatever its scale."""
    (first, after), _ = weights_after_each_step([1.0], precision=precision)
    (_, plain), _ = weights_after_each_step([1.0])
    norm = float((first - plain).norm())
    torch.testing.assert_close(first - after, first - plain, rtol=exact, atol=exact * norm)
    for clip in (0.5, norm / 4, norm * 4):
        (_, clipped), _ = weights_after_each_step([1.0], precision=precision, clip_norm=clip)
        expected = (first - plain) * min(1.0, clip / norm)
        torch.testing.assert_close(first - clipped, expected, rtol=exact, atol=exact * norm)
        assert float((first - clipped).norm()) <= clip * (1 + 1e-5)


@pytest.mark.parametrize(
    ("precision", "product", "has_scale"),
    [("fp32", torch.float32, False), ("bf16", torch.bfloat16, False), ("fp16", torch.float16, True)],
)
def test_a_precision_multiplies_in_its_type(precision: str, product: torch.dtype, has_scale: bool) -> None:
    """float16 alone scales the loss."""
    made, matrix = PRECISIONS[precision]("cpu"), torch.eye(4)
    with made.autocast():
        assert (matrix @ matrix).dtype is product
    learner = learner_of(small_model(), precision)
    assert bool(learner.precision.state_dict(learner.optimizer)) is has_scale


def test_the_first_broken_loss_is_remembered() -> None:
    """The number of its step, from 0 on; -1 without one."""
    totals, logits, labels = Totals.zero(ALONE.device, 1), torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    assert int(totals.broken_step) == -1
    for step in (0, 1):
        totals.add(step, 0, torch.tensor(torch.inf), logits, labels)
    assert int(totals.broken_step) == 0


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"fused_sgd"}))  # which needs a GPU
def test_every_optimizer_lowers_the_loss(name: str) -> None:
    """Of the same batch, in twenty steps, each in its own way. The head has its own learning rate."""
    net, (batch,) = small_model(), some_batches(1)
    optimizer = OPTIMIZERS[name](network.parameter_groups(net, 1e-3, False, head_scale=0.5), 1.0, 0.9, True)
    learner = replace(learner_of(net), optimizer=optimizer)
    before = nn.functional.cross_entropy(net(batch.images), batch.labels).item()
    stream = (replace(batch, step=step) for step in range(20))
    model, totals = PARALLELS["single"](net, ALONE, True, 1), Totals.zero(ALONE.device, 1)
    assert len(list(loop.train(learner, model, stream, [0.01] * 20, totals))) == 20
    assert {(group["scale"], group["lr"]) for group in optimizer.param_groups} == {(1.0, 0.01), (0.5, 0.005)}
    assert nn.functional.cross_entropy(net(batch.images), batch.labels).item() < 0.9 * before


def test_the_average_of_the_weights_is_its_closed_form() -> None:
    """After n steps it is d^n times the first weights plus (1 - d) d^(n - k) times those after each step k."""
    decay, steps = 0.8, 6
    weights, ema = weights_after_each_step([0.1] * steps, ema_decay=decay)
    expected = decay**steps * weights[0]
    for k in range(1, steps + 1):
        expected = expected + (1 - decay) * decay ** (steps - k) * weights[k]
    torch.testing.assert_close(torch.cat([average.flatten() for average in ema.averages]), expected)
    assert not torch.allclose(expected, weights[-1])
    assert not any(average.requires_grad for average in ema.averages)  # each step would keep the last one's memory


def test_the_next_batch_is_made_before_the_weights_change() -> None:
    """The batch of a step is made when the weights are still those before the last step; the weights are the same.

    A batch that cannot be made ends the training where it is needed: after the steps before it.
    """
    net, weights_at_batches, after = small_model(), list[Tensor](), list[Tensor]()

    def stream() -> Iterator[Batch]:
        for batch in some_batches(3):
            weights_at_batches.append(as_vector(net))
            yield batch
        raise ValueError("the fourth")

    batches, totals = loop.Lookahead(stream()), Totals.zero(ALONE.device, 1)
    model, rates = PARALLELS["single"](net, ALONE, True, 1), [0.1] * 4
    with pytest.raises(ValueError, match="the fourth"):
        after += (as_vector(net) for _ in loop.train(learner_of(net), model, batches, rates, totals, batches.begin))
    (first, *expected), _ = weights_after_each_step([0.1] * 3)
    assert [*map(torch.Tensor.tolist, after)] == [*map(torch.Tensor.tolist, expected)]
    assert [*map(torch.Tensor.tolist, weights_at_batches)] == [*map(torch.Tensor.tolist, [first, first, expected[0]])]


@pytest.mark.parametrize("overflow", [0, 1], ids=["first", "second"])
def test_a_step_that_overflows_leaves_no_trace(monkeypatch: pytest.MonkeyPatch, overflow: int) -> None:
    """The fused kernel of a GPU skips it by itself, without a value that the host reads, and has the same bits."""
    weights, item, was_read = {}, Tensor.item, False

    def read(tensor: Tensor) -> float:
        nonlocal was_read
        was_read = True
        return item(tensor)

    monkeypatch.setattr(Tensor, "item", read)
    gradients = [torch.linspace(-1, 1, 7), torch.linspace(0.1, 3, 7)]
    gradients.insert(overflow, torch.full((7,), torch.inf))
    for fused in (None, True):
        monkeypatch.setattr(choices, "_on_gpu", lambda _, fused=fused: fused)
        weight = nn.Parameter(torch.linspace(-2, 2, 7))
        optimizer, scaler = OPTIMIZERS["sgd"]([{"params": [weight]}], 0.1, 0.9, False), torch.amp.GradScaler("cpu")
        was_read = False
        for gradient in gradients:
            weight.grad = gradient * scaler.scale(torch.ones(()))
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert was_read != bool(fused)
        weights[fused] = weight.tolist()
    assert weights[True] == weights[None]
    assert weights[True][0] == pytest.approx(-2 + 0.1 - 0.1 * (0.1 - 0.9))
