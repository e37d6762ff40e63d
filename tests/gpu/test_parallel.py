"""Gradients and statistics over two ranks equal those of the whole batch."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.learning import collectives
from pipeline.learning.choices import PARALLELS, SYNC_BNS
from pipeline.learning.world import World
from pipeline.loader.batches import Batch
from tests.gpu import training
from tests.gpu.training import HALF, NATIVE, Figures, batches, distance, gradients, masters, setup, state_digest, train


@pytest.mark.gpu(ranks=2)
@pytest.mark.parametrize("parallel", ["ddp", "apex_ddp"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "O1", "O2"])
def test_accumulation(world: World, precision: str, parallel: str) -> Figures:
    """Two microbatches on each of two ranks change the weights as one does, and equally on all ranks."""
    ready = setup(world, precision, parallel, make=training.plain_net, momentum=0)
    train(ready, batches(world, 0, 5), rate=0.0)  # the loss scale settles
    weights = deepcopy(ready.bare.state_dict())
    numbers = deepcopy(ready.precision.state_dict(ready.optimizer))
    before, changes = masters(ready), []
    for microbatches in (1, 2):
        ready.bare.load_state_dict(weights)
        ready.precision.load_state_dict(deepcopy(numbers), ready.optimizer)
        train(ready, batches(world, 0, 1), rate=1.0, microbatches=microbatches)
        changes.append(masters(ready) - before)
        assert training.everywhere(world, changes[-1]), (
            f"all ranks have the same weights with {microbatches} microbatches"
        )
    apart = distance(changes[1], changes[0])
    assert apart < (2e-2 if precision in HALF else 1e-4), f"microbatches change the weights as the batch does: {apart}"
    return {"difference": apart}


@pytest.mark.gpu(ranks=2, needs="cuda")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["torch", "apex"])
def test_sync_bn(world: World, kind: str, dtype: str) -> Figures:
    """Synchronized BatchNorm over two ranks gives the result of plain BatchNorm over the images of both."""
    source = torch.Generator().manual_seed(0)
    images, weight = (
        torch.randn((16, 6, 5, 7), generator=source).to(world.device, getattr(torch, dtype)) for _ in range(2)
    )
    norms = (nn.BatchNorm2d(6).to(world.device), SYNC_BNS[kind](nn.Sequential(nn.BatchNorm2d(6))).to(world.device))
    slices = (slice(None), slice(world.rank, None, world.size))
    results: list[dict[str, Tensor]] = []
    for norm, rows in zip(norms, slices, strict=True):
        pixels = images[rows].float() if norm is norms[0] else images[rows]
        pixels.requires_grad_()
        out = norm(pixels)
        (out * weight[rows]).float().sum().backward()
        scale, shift = norm.parameters()
        mean, variance, count = norm.buffers()
        assert count.item() == 1, "a batch is counted once"
        assert pixels.grad is not None
        assert scale.grad is not None
        assert shift.grad is not None
        values = {"output": out, "input": pixels.grad, "scale": scale.grad, "shift": shift.grad}
        results.append({**{key: value.detach() for key, value in values.items()}, "mean": mean, "variance": variance})
        results[-1]["evaluation"] = norm.eval()(pixels).detach()
    batch, rank = results
    apart = {}
    for key, value in rank.items():
        actual = collectives.all_reduce_sum(value.float()) if key in ("scale", "shift") else value.float()
        of_images = key in ("output", "input", "evaluation")
        apart[key] = distance(actual, batch[key][slices[1]] if of_images else batch[key])
        assert apart[key] < (5e-3 if dtype == "float16" else 1e-5), f"{key} differs by {apart[key]}"
    return {**apart}


@pytest.mark.gpu(ranks=2)
@pytest.mark.parametrize("precision", NATIVE)
def test_elastic(world: World, precision: str) -> Figures:
    """Four shards give the same bits on two ranks and on one, also for six steps that move from two ranks to one."""
    steps = batches(World(0, 0, 1, world.device), 0, 6)
    ready = setup(world, precision, "elastic", microbatches=4)
    rows = slice(*(len(steps[0].labels) * rank // world.size for rank in (world.rank, world.rank + 1)))
    shares = [replace(s, images=s.images[rows], labels=s.labels[rows], targets=s.targets[rows]) for s in steps]
    train(ready, shares[:3])
    moved, alone = (setup(World(0, 0, 1, world.device), precision, "elastic", microbatches=4) for _ in range(2))
    moved.bare.load_state_dict(ready.bare.state_dict())
    moved.optimizer.load_state_dict(deepcopy(ready.optimizer.state_dict()))
    moved.precision.load_state_dict(deepcopy(ready.precision.state_dict(ready.optimizer)), moved.optimizer)
    train(ready, shares[3:])
    train(moved, steps[3:])
    train(alone, steps)
    assert state_digest(ready) == state_digest(alone), "two ranks have the bits of one"
    assert state_digest(moved) == state_digest(alone), "moved from two ranks to one in the middle, the bits stay"
    return {"digest": state_digest(alone)[:16]}


@pytest.mark.gpu(ranks=2, needs="apex")
def test_apex_ddp_gradients(world: World) -> Figures:
    """Apex's DDP gives the gradients of torch's, delayed and overlapping, from the first pass on."""
    worst = {}
    for deterministic in (True, False):
        one, other = (
            setup(world, "fp32", parallel, deterministic=deterministic).model for parallel in ("ddp", "apex_ddp")
        )
        assert bool(other.delay_allreduce) is deterministic, "deterministic: one exchange after the backward pass"
        if deterministic or world.device.type == "cuda":  # what overlaps needs streams
            name = "delayed" if deterministic else "overlapping"
            worst[name] = max(_apart(one, other, batch) for batch in batches(world, 0, 4))
            assert worst[name] < 1e-6, f"{name}: gradients differ by {worst[name]}"
    return {**worst}


@pytest.mark.gpu(ranks=2, needs="extensions")
def test_apex_ddp_buckets(world: World) -> Figures:
    """The same with several buckets in transfer at once. A race would change the gradients."""

    def wide() -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Linear(2048, 2048, bias=False) for _ in range(6)]  # a bucket is sent at 10 million numbers
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2048), *layers, nn.Linear(2048, 4))

    one, other = (
        setup(world, "fp32", parallel, make=wide, deterministic=False).model for parallel in ("ddp", "apex_ddp")
    )
    worst = max(_apart(one, other, batch) for batch in batches(world, 0, 6, side=8))
    assert worst < 1e-6, f"gradients differ by {worst}"
    buckets = int(getattr(other, "num_buckets", 0))
    assert buckets > 1, f"there are several buckets: {buckets}"
    return {"difference": worst, "buckets": buckets}


@pytest.mark.gpu(needs="extensions")
def test_apex_ddp_channels_last(world: World) -> Figures:
    """Shows whether Apex's DDP scrambles the gradients of channels_last convolutions, even on one rank."""
    apart = {}
    for name, layout in (("contiguous", torch.contiguous_format), ("channels_last", torch.channels_last)):
        model = training.small_resnet().to(world.device).to(memory_format=layout)  # type: ignore[call-overload]
        (batch,) = batches(world, 0, 1)
        images = batch.images.to(memory_format=layout)
        F.cross_entropy(model(images), batch.labels).backward()
        alone = gradients(model)
        model.zero_grad()
        F.cross_entropy(PARALLELS["apex_ddp"](model, world, True, world.size).model(images), batch.labels).backward()
        apart[name] = distance(gradients(model), alone)
    assert apart["contiguous"] < 1e-6, f"contiguous gradients are left alone: {apart['contiguous']}"
    return {**apart, "scrambled": apart["channels_last"] > 1e-3}


def _apart(one: nn.Module, other: nn.Module, batch: Batch) -> float:
    """The relative distance between the gradients of two wrapped models on a batch."""
    results = []
    for model in (one, other):
        model.zero_grad()
        F.cross_entropy(model(batch.images), batch.labels).backward()
        results.append(gradients(model))
    return distance(results[1], results[0])
