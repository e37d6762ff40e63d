"""Apex's kernels, masters and casts. tests/test_apex.py runs what needs no kernel on a CPU, too."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.learning import loop
from pipeline.learning.world import World
from tests.gpu.training import (
    Figures,
    batches,
    distance,
    everywhere,
    gradients,
    masters,
    setup,
    small_resnet,
    state_digest,
    train,
)


@pytest.mark.gpu(ranks=2, needs="apex")
def test_masters(world: World) -> Figures:
    """Under O2 the half weights are the rounded masters, on all ranks, and the masters have more bits."""
    ready = setup(world, "O2", "ddp")
    train(ready, batches(world, 0, 10))
    weights = list(ready.bare.parameters())
    parameters = [p for group in ready.optimizer.param_groups for p in group["params"]]
    assert {p.dtype for p in parameters} == {torch.float32}, "masters are float32"
    assert {p.dtype for p in weights} == {torch.float16, torch.float32}, "weights are half, BatchNorm's float32"
    assert all(torch.equal(m.to(w.dtype), w) for w, m in zip(weights, parameters, strict=True)), (
        "weights round the masters"
    )
    assert everywhere(world, masters(ready)), "all ranks have the same masters"
    apart = distance(torch.cat([w.detach().float().flatten() for w in weights]), masters(ready))
    assert 0 < apart < 1e-3, f"the masters hold what half precision rounds off: {apart}"
    return {"rounded_off": apart}


@pytest.mark.gpu(needs="apex")
def test_resume_of_o2(world: World) -> Figures:
    """Half weights do not determine the masters, and a momentum loaded before the masters exist is rounded to half."""
    ready = setup(world, "O2")
    train(ready, batches(world, 0, 3))
    model, momenta, numbers = deepcopy(
        (ready.bare.state_dict(), ready.optimizer.state_dict(), ready.precision.state_dict(ready.optimizer))
    )
    train(ready, batches(world, 3, 6))

    def resumed(saved: dict[str, Any], optimizer_first: bool) -> str:
        other = setup(world, "O2")
        other.bare.load_state_dict(model)
        if optimizer_first:
            other.optimizer.load_state_dict(deepcopy(momenta))
        other.precision.load_state_dict(deepcopy(saved), other.optimizer)
        if not optimizer_first:
            other.optimizer.load_state_dict(deepcopy(momenta))
        train(other, batches(world, 3, 6))
        return state_digest(other)

    rounded = {**numbers, "masters": [master.half().float() for master in numbers["masters"]]}
    assert resumed(numbers, optimizer_first=False) == state_digest(ready), "a resume has the bits of a whole run"
    assert resumed(rounded, optimizer_first=False) != state_digest(ready), "the masters are needed"
    assert resumed(numbers, optimizer_first=True) != state_digest(ready), "the masters are needed before the momentum"
    return {"digest": state_digest(ready)[:16]}


@pytest.mark.gpu(needs="apex")
def test_gradients_of_o2(world: World) -> Figures:
    """Apex's zero_grad takes no argument. No gradient stays on weights or masters after a step."""
    ready = setup(world, "O2")
    assert _raises(TypeError, lambda: ready.optimizer.zero_grad(set_to_none=True)), "set_to_none is refused"
    train(ready, batches(world, 0, 2))
    parameters = [*ready.bare.parameters(), *(p for group in ready.optimizer.param_groups for p in group["params"])]
    assert all(p.grad is None or not p.grad.any() for p in parameters), "nothing is left of the gradients"
    return {"parameters": len(parameters)}


@pytest.mark.gpu(needs="apex")
def test_sums_of_o1(world: World) -> Figures:
    """Apex replaces Tensor.cpu by one that rounds float64 to float32. Tensor.to keeps every bit."""
    train(setup(world, "O1"), batches(world, 0, 1))
    exact = torch.tensor(1 + 2.0**-40, dtype=torch.float64, device=world.device)
    assert exact.to("cpu").item() == 1 + 2.0**-40, "to keeps every bit"
    return {"rounded_by_cpu": exact.cpu().item() == 1}


@pytest.mark.gpu(needs="apex")
def test_replica_of_o0(world: World) -> Figures:
    """Apex casts by an attribute of the model, also at O0. A copy shares it: so O0 does not go with dp."""
    model = setup(world, "O0").bare
    assert model._replicate_for_data_parallel().forward is model.forward, "a copy calls the original's forward"
    return {}


@pytest.mark.gpu(needs="extensions")
@pytest.mark.parametrize("precision", ["fp32", "O2"])
def test_fused_sgd(world: World, precision: str) -> Figures:
    """FusedSGD changes the weights as SGD does: momentum, Nesterov, decay. Under O2 the weights are rounded masters."""
    weights = {}
    for optimizer in ("sgd", "fused_sgd"):
        ready = setup(world, precision, optimizer=optimizer)
        train(ready, batches(world, 0, 1))
        parameters = [p for group in ready.optimizer.param_groups for p in group["params"]]
        source = torch.Generator().manual_seed(0)
        for _ in range(5):
            for weight in parameters:
                weight.grad = torch.randn(weight.shape, generator=source).to(world.device)
            ready.optimizer.step()
        weights[optimizer] = masters(ready)
        for weight, master in zip(ready.bare.parameters(), parameters, strict=True):
            assert torch.equal(master.to(weight.dtype), weight), f"{optimizer}: weights round the masters"
    apart = distance(weights["fused_sgd"], weights["sgd"])
    assert apart < 1e-6, f"FusedSGD and SGD are {apart} apart"
    return {"difference": apart}


@pytest.mark.gpu(needs="extensions")
def test_overflow_kernel(world: World) -> Figures:
    """amp_C scales half to float exactly, and finds an infinity or a NaN at both ends of a tensor of any size."""
    import amp_C  # type: ignore[import-not-found]

    chunk = 2048 * 32
    for size in (1, 555, chunk - 1, chunk, chunk + 1, 3 * chunk + 7):
        source = torch.randn(size, device=world.device).half()
        target = torch.empty(size, device=world.device)
        flag = torch.zeros(1, dtype=torch.int, device=world.device)
        amp_C.multi_tensor_scale(chunk, flag, [[source], [target]], 1 / 128)
        assert flag.item() == 0, f"{size} numbers are scaled without an overflow"
        assert torch.equal(target, source.float() / 128), f"{size} numbers are scaled"
        for position in (0, -1):
            for value in (torch.inf, torch.nan):
                broken = source.clone()
                broken[position] = value
                flag.zero_()
                amp_C.multi_tensor_scale(chunk, flag, [[broken], [target]], 1 / 128)
                assert flag.item() == 1, f"{value} at {position} of {size} numbers is seen"
    return {"sizes": 6}


@pytest.mark.gpu(needs="apex")
def test_o1_cache(world: World) -> Figures:
    """An evaluation uses loaded weights, but not without our guard. The gradients after it are right."""
    ready = setup(world, "O1")
    other = small_resnet().to(world.device).eval()
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.25)
    (batch,) = batches(world, 0, 1)
    with torch.no_grad():
        expected = other(batch.images).float()  # O1 patches torch itself: this model runs under it too
        ready.precision.weights_changed()
        ready.bare.eval()(batch.images)
        ready.bare.load_state_dict(other.state_dict())
        stale = distance(ready.bare(batch.images).float(), expected)
        ready.precision.weights_changed()
        new = ready.bare(batch.images).float()
    assert stale > 0, "without the guard the old weights answer; if not, the guard is not needed"
    assert torch.equal(new, expected), "after weights_changed the new weights answer"
    ready.bare.load_state_dict(small_resnet().state_dict())
    ready.bare.load_state_dict(other.state_dict())
    (of_loop,) = loop.logits(ready.model, [batch.images], ready.precision)
    assert torch.equal(of_loop, expected), "in loop.logits the new weights answer"

    def step_gradients() -> Tensor:
        ready.bare.train()
        ready.bare.zero_grad()
        ready.precision.backward(F.cross_entropy(ready.bare(batch.images), batch.labels), ready.optimizer)
        return gradients(ready.bare)

    before = step_gradients()
    list(loop.logits(ready.model, [batch.images], ready.precision))
    assert torch.equal(step_gradients(), before), "an evaluation between two steps changes no gradient"
    return {"stale_by": stale}


@pytest.mark.gpu(needs="apex")
def test_o1_casts(world: World) -> Figures:
    """The types of O1's computations, what O1 refuses, and that `exact` switches its casts off."""
    ready = setup(world, "O1")
    single = torch.rand(4, 4, device=world.device)
    half, double = single.half(), single.double()
    norm = nn.BatchNorm1d(4).to(world.device)
    results: dict[str, tuple[Tensor, torch.dtype]] = {
        "linear": (F.linear(single, single), torch.float16),
        "matmul": (single @ single, torch.float16),
        "convolution": (F.conv2d(single[None, None], single[None, None]), torch.float16),
        "softmax": (F.softmax(half, 1), torch.float32),
        "cross_entropy": (F.cross_entropy(half, torch.arange(4, device=world.device)), torch.float32),
        "power": (half**2.0, torch.float32),
        "sum": (half.sum(), torch.float32),
        "relu of half": (F.relu(half), torch.float16),
        "relu of single": (F.relu(single), torch.float32),
        "norm of half": (norm(half), torch.float16),
        "product of both": (half * single, torch.float32),
        "concatenation of both": (torch.cat([half, single]), torch.float32),
        "sum into half": (half.clone().add_(single), torch.float16),
    }
    for name, (result, dtype) in results.items():
        assert result.dtype == dtype, f"{name} gives {dtype}: {result.dtype}"
    refusals: dict[str, Callable[[], object]] = {
        "binary cross-entropy of half": lambda: F.binary_cross_entropy(half, half),
        "exponential into half": lambda: half.clone().exp_(),
        "product with double": lambda: single * double,
    }
    for name, compute in refusals.items():
        assert _raises(NotImplementedError, compute), f"{name} is refused"
    with ready.precision.exact():
        with ready.precision.exact():
            pass
        assert (single @ single).dtype == torch.float32, "inside exact nothing is cast, also after an inner block"
        assert (single * double).dtype == torch.float64, "inside exact types mix as torch mixes them"
    assert (single @ single).dtype == torch.float16, "after exact O1 casts again"

    def fail() -> None:
        with ready.precision.exact():
            raise ZeroDivisionError

    assert _raises(ZeroDivisionError, fail)
    assert (single @ single).dtype == torch.float16, "after an error inside exact O1 casts again"
    weight = nn.Parameter(single.clone())
    twice = _raises(IndexError, lambda: F.linear(F.linear(single, weight), weight))
    ready.precision.weights_changed()
    return {"types": len(results), "refused": len(refusals), "weight_used_twice_fails": twice}


def _raises(kind: type[Exception], compute: Callable[[], object]) -> bool:
    try:
        compute()
    except kind:
        return True
    return False
