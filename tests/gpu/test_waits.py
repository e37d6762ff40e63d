"""The number of times that the host waits for the GPU."""

import warnings

import pytest
import torch
from torch import nn

from pipeline.config import params
from pipeline.learning import loop, schedule
from pipeline.learning.ema import Ema
from pipeline.learning.world import World
from pipeline.loader.sampler import Share
from tests.gpu.training import NATIVE, Figures, setup


@pytest.mark.gpu(needs="cuda")
@pytest.mark.parametrize(
    ("precision", "optimizer"), [*((native, "sgd") for native in NATIVE), ("bf16", "adamw"), ("O1", "sgd")]
)
def test_waits(world: World, precision: str, optimizer: str) -> Figures:
    """A step never waits for the GPU, with train.py's batches and all augmentations. Apex's levels ask as often as Apex
    does whether a gradient overflowed."""
    from benchmarks.speed import ours  # imports TensorBoard, which no other case needs
    from pipeline.loader.batches import train_batches

    settings = params.load().train.model_copy(
        update={"precision": precision, "batch_size": 16, "crop": 32, "erasing": 0.5, "color_jitter": 0.2}
        | {"mixup": 0.2, "epochs": 10, "warmup_epochs": 0}
    )
    dataset = ours.noise(64, 40, 4, world.device)
    ready = setup(world, precision, optimizer=optimizer)
    stream = train_batches(dataset, settings, Share(world.share(1), 1), 0)
    average = Ema.create(ready.bare, 0.9)
    learner = loop.Learner(ready.bare, nn.CrossEntropyLoss(), ready.optimizer, ready.precision, average, clip_norm=1.0)
    rates = schedule.learning_rates(settings, 64)
    steps = loop.train(learner, ready.parallel_model, stream, rates, loop.Totals.zero(world.device, 1))
    for _ in range(10):  # the first choose algorithms, send constants, and let the loss scale settle
        next(steps)
    torch.cuda.synchronize()
    warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        for _ in range(20):
            next(steps)
    torch.cuda.set_sync_debug_mode("default")
    others = [str(one.message) for one in messages if "called a synchronizing CUDA operation" not in str(one.message)]
    assert not others, f"nothing else is warned of: {others}"
    waits = len(messages) / 20
    if precision in NATIVE:
        assert not waits, f"{waits} waits a step"
    return {"waits_a_step": waits}
