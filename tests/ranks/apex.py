"""What engine/apex.py does in a process of its own, on CPU tensors: one function per scenario.

    PYTHONPATH=<folder with Apex's source> python -m tests.ranks.apex SCENARIO ARGUMENTS...

Prints what the scenario returns, as JSON. Every warning is an error.
"""

import json
import sys
import warnings
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.engine import loop
from pipeline.engine.choices import PARALLELS, SYNC_BNS
from pipeline.engine.ema import Ema
from pipeline.engine.world import World
from tests.gpu.training import digest
from tests.ranks.apex_training import batches, masters, prepare, relax, small, train


def fault() -> str:
    """The message of `apex.fault`."""
    from pipeline.engine import apex

    return apex.fault()


def stale() -> dict[str, bool]:
    """Which weights a model under O1 uses after others were loaded, with and without `weights_changed`."""
    precision, model, _ = prepare("O1", norm=False)  # BatchNorm keeps its float32 weights under O1
    model.eval()
    other = small(norm=False)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.5)
    other.eval()
    images = batches(0, 1)[0].images

    def logits() -> Tensor:
        with torch.no_grad():
            answer: Tensor = model(images)
        return answer

    before = logits()
    with torch.no_grad():
        expected = other(images)  # O1 patches torch itself: this model runs under it too
    model.load_state_dict(other.state_dict())
    old = logits()
    precision.weights_changed()
    new = logits()
    model.load_state_dict(small(norm=False).state_dict())
    (of_loop,) = loop.logits(model, [images], precision)
    return {
        "half": before.dtype == torch.float16,
        "unguarded is old": torch.equal(old, before),
        "guarded is new": torch.equal(new, expected) and not torch.equal(before, expected),
        "the loop's is new": torch.equal(of_loop, before.float()),
    }


def averaged() -> dict[str, bool]:
    """Which weights `loop.logits` uses under O1 while the average is applied, and after it."""
    precision, model, optimizer = prepare("O1")
    ema = Ema.create(model, 0.5)
    train(model, batches(0, 4), precision, optimizer, ema=ema)
    images = batches(9, 10)[0].images
    (before,) = loop.logits(model, [images], precision)
    twin = small()
    with ema.swap():
        (applied,) = loop.logits(model, [images], precision)
        twin.load_state_dict(model.state_dict())
    (after,) = loop.logits(model, [images], precision)
    (expected,) = loop.logits(twin, [images], precision)
    return {
        "averages answer inside": torch.equal(applied, expected),
        "weights answer outside": torch.equal(before, after),
        "they differ": not torch.equal(before, applied),
    }


def exactness() -> dict[str, bool]:
    """Whether O1 casts, outside and inside `exact`."""
    precision, _, _ = prepare("O1")
    square, double = torch.randn(4, 4), torch.randn(4, 4, dtype=torch.float64)

    def half() -> bool:
        return (square @ square).dtype == torch.float16

    checks = {"cast outside": half()}
    with pytest.raises(NotImplementedError):
        square * double
    with precision.exact():
        checks["not cast inside"] = not half()
        checks["types mix as torch mixes them"] = (square * double).dtype == torch.float64
        with precision.exact():
            pass
        checks["nor after an inner block"] = not half()
    checks["cast after"] = half()
    with pytest.raises(ZeroDivisionError), precision.exact():
        1 / 0  # noqa: B018
    checks["cast after an error"] = half()
    return checks


def sums_on_the_cpu() -> dict[str, bool]:
    """Which of Tensor.cpu and Tensor.to keeps the bits of float64 sums, under O1."""
    precision, model, optimizer = prepare("O1")
    train(model, batches(0, 1), precision, optimizer)
    exact = torch.tensor(1 + 2.0**-40, dtype=torch.float64)
    return {"cpu() keeps them": exact.cpu().item() != 1, "to() keeps them": exact.to("cpu").item() == 1 + 2.0**-40}


def moved(level: str) -> dict[str, float]:
    """The norm of the change of the masters in one step of plain SGD, by learning rate."""
    precision, model, optimizer = prepare(level, momentum=0)
    lengths = {}
    for rate in (0.0, 0.25, 0.5):
        before = masters(optimizer)
        train(model, batches(0, 1), precision, optimizer, rate=rate, clip_norm=0.125)
        change = masters(optimizer) - before
        head = 4 * 33  # the head's weights and biases, whose group has twice the rate
        change[-head:] /= 2
        lengths[str(rate)] = change.norm().item()
    return lengths


def zeroed() -> dict[str, bool]:
    """What remains of the gradients after a step under O2."""
    precision, model, optimizer = prepare("O2")
    is_refused = False
    try:
        optimizer.zero_grad(set_to_none=True)
    except TypeError:
        is_refused = True
    train(model, batches(0, 2), precision, optimizer)
    everything = [*model.parameters(), *(p for group in optimizer.param_groups for p in group["params"])]
    return {
        "set_to_none is a TypeError": is_refused,
        "nothing is left of the gradients": all(p.grad is None or not p.grad.any() for p in everything),
    }


def overflown(level: str) -> dict[str, bool]:
    """What a step with an overflow in its first microbatch changes."""
    precision, model, optimizer = prepare(level)
    train(model, batches(0, 1), precision, optimizer)
    scale = precision.state_dict(optimizer)["scalers"]["loss_scaler0"]["loss_scale"]
    before = masters(optimizer)
    (broken,) = batches(1, 2)
    broken.images[0, 0, 0, 0] = torch.inf
    statistics = deepcopy(model.state_dict())
    train(model, [broken], precision, optimizer, microbatches=2, clip_norm=1.0)
    skipped = torch.equal(masters(optimizer), before)
    model.load_state_dict(statistics)  # BatchNorm has seen the infinity
    state = precision.state_dict(optimizer)
    train(model, batches(2, 3), precision, optimizer)
    return {
        "the step is skipped": skipped,
        "the scale is halved": state["scalers"]["loss_scaler0"]["loss_scale"] == scale / 2,
        "the next step is taken": not torch.equal(masters(optimizer), before)
        and bool(masters(optimizer).isfinite().all()),
    }


def resumed(level: str, folder: str, part: str) -> str:
    """The digest after six steps: without a break (`whole`, which saves after three), or from the saved state."""
    precision, model, optimizer = prepare(level)
    path = Path(folder) / "checkpoint.pt"
    if part == "whole":
        train(model, batches(0, 3), precision, optimizer)
        state = {"optimizer": optimizer.state_dict(), "precision": precision.state_dict(optimizer)}
        torch.save({"model": model.state_dict(), **state}, path)
    else:
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        if part == "optimizer first":
            optimizer.load_state_dict(state["optimizer"])
        if part == "without masters":
            state["precision"]["masters"] = [p.half().float() for p in state["precision"]["masters"]]
        precision.load_state_dict(state["precision"], optimizer)
        if part != "optimizer first":
            optimizer.load_state_dict(state["optimizer"])
    train(model, batches(3, 6), precision, optimizer)
    return digest(model.state_dict(), optimizer.state_dict(), precision.state_dict(optimizer))


def meet(folder: str, rank: int, size: int) -> World:
    """A world of `size` processes that meet through a file in `folder`."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    return World(rank, 0, size, torch.device("cpu"))


def wrapped(folder: str, sync_bn: str) -> dict[str, Any]:
    """How Apex's DDP and SyncBatchNorm are made, with and without `deterministic`."""
    world = meet(folder, 0, 1)
    model = SYNC_BNS[sync_bn](small())
    by_choice = {choice: PARALLELS["apex_ddp"](model, world, choice, 1).model for choice in (True, False)}
    result = {
        "delayed": by_choice[True].delay_allreduce,
        "overlapping": not by_choice[False].delay_allreduce,
        "unwrapped": by_choice[True].module is model,
        "norm": {type(m).__name__: type(m).__module__ for m in model.modules()}["SyncBatchNorm"].split(".")[0],
    }
    dist.destroy_process_group()
    return result


def parallel_model(folder: str, rank: str, level: str, parallel: str, microbatches: str) -> list[float]:
    """The masters after two steps of two processes, each with its half of every batch."""
    world = meet(folder, int(rank), 2)
    precision, model, optimizer = prepare(level, norm=False)
    rows = slice(world.rank, None, 2)
    shares = [replace(b, images=b.images[rows], labels=b.labels[rows], targets=b.targets[rows]) for b in batches(0, 2)]
    wrapper = PARALLELS[parallel](model, world, True, 2).model
    train(wrapper, shares, precision, optimizer, microbatches=int(microbatches))
    dist.destroy_process_group()
    return [float(value) for value in masters(optimizer)]


def alone(level: str) -> list[float]:
    """The masters after the same two steps of one process."""
    precision, model, optimizer = prepare(level, norm=False)
    train(model, batches(0, 2), precision, optimizer)
    return [float(value) for value in masters(optimizer)]


def replica() -> bool:
    """Whether a copy for DataParallel calls the original model's forward."""
    _, model, _ = prepare("O0")
    copy = model._replicate_for_data_parallel()
    return copy.forward is model.forward


if __name__ == "__main__":
    warnings.simplefilter("error")
    relax()
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
