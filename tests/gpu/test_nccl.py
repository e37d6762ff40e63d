"""The exchange over NCCL: in one process on one GPU, and between two GPUs. In the dry run gloo takes its place."""

import pytest
import torch

from pipeline.learning.world import World
from tests.gpu import test_parallel, training
from tests.gpu.training import HALF, Figures, Setup, batches, masters, plain_net, setup, state_digest, train

PRECISIONS = ("fp32", "fp16")


@pytest.mark.gpu(gpus=1)
@pytest.mark.parametrize("parallel", ["dp", "ddp", "apex_ddp", "elastic"])
def test_one_process_trains_what_single_trains(world: World, parallel: str) -> Figures:
    """One process on one GPU has the bits of `single` in every way."""
    alone, ready = (setup(world, "fp32", way) for way in ("single", parallel))
    for one in (alone, ready):
        train(one, batches(world, 0, 5))
    assert state_digest(ready) == state_digest(alone), f"{parallel} has the bits of single"
    return {"digest": state_digest(ready)[:16]}


def change(ready: Setup, world: World) -> torch.Tensor:
    """How much a step of rate 1 changes the weights."""
    train(ready, batches(world, 0, 5), rate=0.0)  # the loss scale settles
    before = masters(ready)
    train(ready, batches(world, 5, 6), rate=1.0)
    return masters(ready) - before


def compare_with_one_gpu(world: World, precision: str, parallel: str) -> Figures:
    """All GPUs change the weights as one does on the whole batch."""
    alone = World(0, 0, 1, world.device)
    expected = change(setup(alone, precision, "single", make=plain_net, momentum=0), alone)
    actual = change(setup(world, precision, parallel, make=plain_net, momentum=0), world)
    assert training.everywhere(world, actual), "all ranks have the same weights"
    apart = training.distance(actual, expected)
    assert apart < (2e-2 if precision in HALF else 1e-4), f"two GPUs change the weights as one does: {apart}"
    return {"difference": apart}


@pytest.mark.gpu(ranks=2, gpus=2)
@pytest.mark.parametrize("parallel", ["ddp", "apex_ddp"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_gpus_train_what_one_trains(world: World, precision: str, parallel: str) -> Figures:
    return compare_with_one_gpu(world, precision, parallel)


@pytest.mark.gpu(gpus=2)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_dp_on_two_gpus(world: World, precision: str) -> Figures:
    """One process of DataParallel computes on all visible GPUs, and changes the weights as one GPU does."""
    devices = set()
    ready = setup(world, precision, "dp", make=plain_net)
    ready.bare.register_forward_hook(lambda model, images, logits: devices.add(logits.device))
    train(ready, batches(world, 0, 1))
    assert len(devices) == max(1, torch.cuda.device_count()), f"every GPU computes a part of the batch: {devices}"
    return compare_with_one_gpu(world, precision, "dp")


@pytest.mark.gpu(ranks=2, gpus=2)
@pytest.mark.parametrize("parallel", ["ddp", "apex_ddp"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_second_training_has_the_same_bits(world: World, precision: str, parallel: str) -> Figures:
    digests = set()
    for _ in range(2):
        ready = setup(world, precision, parallel)
        train(ready, batches(world, 0, 5))
        digests.add(state_digest(ready))
    assert len(digests) == 1, "the sums of NCCL have one order"
    return {"digest": digests.pop()[:16]}


# The tests of two ranks on one GPU, over gloo, once more over NCCL.


@pytest.mark.gpu(ranks=2, gpus=2)
@pytest.mark.parametrize("parallel", ["ddp", "apex_ddp"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_parts_over_nccl(world: World, precision: str, parallel: str) -> Figures:
    return test_parallel.test_accumulation(world, precision, parallel)


@pytest.mark.gpu(ranks=2, needs="cuda", gpus=2)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["torch", "apex"])
def test_sync_bn_over_nccl(world: World, kind: str, dtype: str) -> Figures:
    return test_parallel.test_sync_bn(world, kind, dtype)


@pytest.mark.gpu(ranks=2, gpus=2)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_elastic_over_nccl(world: World, precision: str) -> Figures:
    return test_parallel.test_elastic(world, precision)


@pytest.mark.gpu(ranks=2, needs="extensions", gpus=2)
def test_buckets_over_nccl(world: World) -> Figures:
    return test_parallel.test_apex_ddp_buckets(world)
