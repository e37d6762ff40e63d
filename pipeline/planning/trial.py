"""Measures a few real training steps with given params, and a batch without training, on random images.

    perennial rank trial FOLDER     trial.json there has `params` and the number of `classes`

Rank 0 writes `estimate.Times` into times.json there. `estimate.measure_times` starts it, once for each of
`run.processes`. The steps are those of the stage `train`: the same model, loader, precision and parallelism. The
learning rate is 0.
"""

import json
import os
import statistics
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
import psutil
import torch

from pipeline.base import linux
from pipeline.base.errors import exit_status
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.dataset.packed import Digest, Packed
from pipeline.learning import collectives, determinism, loop
from pipeline.learning.choices import PARALLELS
from pipeline.learning.loop import Learner, Totals
from pipeline.learning.state import make_learner, make_model, microbatch_count
from pipeline.learning.world import World
from pipeline.loader.batches import eval_batches, train_batches
from pipeline.loader.storage import Dataset, ImageStore
from pipeline.models import network
from pipeline.models.description import View
from pipeline.models.exported import center_crops
from pipeline.running import group, rendezvous

ENOUGH_SECONDS = 2.0  # no more steps after this time
WARM_UP_STEPS, MOST_STEPS = 2, 40  # the first step also compiles and allocates


def random_data(config: Params, classes: int, device: torch.device) -> Dataset:
    """Random packed images on the device: a batch for training, and one for validation."""
    training, validation = config.train.batch_size, config.evaluate.batch_size
    count, side = training + validation, config.prepare.size
    pixels = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)
    packed = Packed(
        folder=Path(config.paths.packed),
        content=Digest("", count, side),
        paths=("",) * count,
        classes=tuple(str(number) for number in range(classes)),
        labels=np.arange(count) % classes,
        sizes=np.full((count, 2), 500, np.int32),
        splits=np.array(["train"] * training + ["val"] * validation),
    )
    store = ImageStore(torch.from_numpy(pixels).to(device), device)
    return Dataset(packed, store, network.normalization(config.train.model))


def trial(config: Params, classes: int) -> dict[str, float]:
    """The fields of `estimate.Times` as a dict: importing `estimate` would make this start longer."""
    settings = config.train
    determinism.make_deterministic(settings.threads, settings.deterministic)
    world = rendezvous.world_of(os.environ, settings.device)
    timeout = config.run.timeout_seconds
    with group.process_group(world, settings.backend, timeout, rendezvous.connect_store(world, timeout)):
        dataset = random_data(config, classes, world.device)
        counts = dict.fromkeys(dataset.packed.classes, 1)  # a batch may lack a class, which train.class_weights refuses
        learner = make_learner(config, make_model(config, tuple(counts), world), counts, world)
        start = time.time() - psutil.Process().create_time()
        seconds = step_seconds(config, learner, dataset, world)
        per_image = validation_seconds(config, learner, dataset)
    step = statistics.median(seconds[WARM_UP_STEPS:] or seconds[1:])
    return {"start": start, "first_step": seconds[0], "step": step, "validation": per_image}


def step_seconds(config: Params, learner: Learner, dataset: Dataset, world: World) -> list[float]:
    """The seconds of each step, the warm-up first. All processes take the same number of steps."""
    if not config.train.has_steps:
        return [0.0, 0.0]
    settings = config.train.model_copy(update={"epochs": WARM_UP_STEPS + MOST_STEPS})
    microbatches = microbatch_count(settings, world)
    model = PARALLELS[settings.parallel](learner.model, world, settings.deterministic, microbatches)
    batches = loop.Lookahead(train_batches(dataset, settings, model.share, 0))
    totals = Totals.zero(world.device, microbatches)
    steps = loop.train(learner, model, batches, [0.0] * settings.epochs, totals, batches.begin)
    seconds: list[float] = []
    before = time.perf_counter()
    for _ in steps:
        wait_for(world.device)
        now = time.perf_counter()
        seconds.append(now - before)
        enough = len(seconds) > 1 and sum(seconds) > ENOUGH_SECONDS
        if collectives.broadcast_object(enough):
            break
        before = time.perf_counter()
    return seconds


def validation_seconds(config: Params, learner: Learner, dataset: Dataset) -> float:
    """The seconds that this process needs for one image of a validation. One image before it compiles and allocates."""
    data = dataset.packed
    rows, seconds = data.rows("val"), 0.0
    for part in (rows[:1], rows):
        crops = center_crops(View.from_params(config), data.sizes, part, dataset.normalization)
        before = time.perf_counter()
        for _ in loop.logits(learner.model, eval_batches(dataset.images, [crops]), learner.precision):
            wait_for(dataset.images.device)
        seconds = time.perf_counter() - before
    return seconds / len(rows)


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(arguments: Namespace) -> int:
    def measure() -> int:
        linux.keep_freed_memory()
        folder = Path(arguments.folder)
        trial_input = json.loads((folder / "trial.json").read_bytes())
        times = trial(params.parse(trial_input["params"]), trial_input["classes"])
        if os.environ.get("RANK", "0") == "0":
            (folder / "times.json").write_text(json.dumps(times))
        return 0

    return exit_status("estimate", measure)
