"""Our own training for the benchmarks: learner, batches and steps of `pipeline.stages.train`, in a prepared copy."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.__main__ import set_up_interpreter
from pipeline.base import linux
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.dataset import packed
from pipeline.dataset.normalization import IMAGENET
from pipeline.dataset.packed import Digest, Packed
from pipeline.learning import determinism, loop, schedule
from pipeline.learning.choices import PARALLELS
from pipeline.learning.loop import Learner, Totals
from pipeline.learning.parallel import ParallelModel
from pipeline.learning.state import make_learner, make_model
from pipeline.learning.task import Task
from pipeline.loader import storage
from pipeline.loader.batches import Batch, train_batches
from pipeline.loader.sampler import Share
from pipeline.loader.storage import Dataset, ImageStore
from pipeline.running import group, rendezvous


@dataclass(frozen=True)
class Ready(Task):
    """A dataset on its device, and the params to train on it with one process."""

    def having(self, **settings: Any) -> "Ready":
        """The same with other settings of `train`."""
        return replace(self, config=with_settings(self.config, settings))

    def batches(self) -> Iterator[Batch]:
        """The batches of the training, without end: after the last one the first again."""
        while True:
            yield from train_batches(
                self.dataset,
                self.config.train,
                Share(self.world.share(self.config.train.accumulation_steps), self.config.train.accumulation_steps),
                0,
            )


def noise(images: int, side: int, classes: int, device: torch.device) -> Dataset:
    """Images of noise uint8 [images, side, side, 3] on the device, in so many classes, all of them to train on."""
    pixels = np.random.default_rng(0).integers(0, 256, (images, side, side, 3), np.uint8)
    packed = Packed(
        folder=Path("noise"),
        content=Digest("", images, side),
        paths=("",) * images,
        classes=tuple(str(number) for number in range(classes)),
        labels=np.arange(images) % classes,
        sizes=np.full((images, 2), side * 5 // 4, np.int32),
        splits=np.full(images, "train"),
    )
    return Dataset(packed, ImageStore(torch.from_numpy(pixels).to(device), device), IMAGENET)


def with_settings(config: Params, settings: dict[str, Any]) -> Params:
    """The params with other settings of `train`."""
    return config.model_copy(update={"train": config.train.model_copy(update=settings)})


def set_up(settings: dict[str, Any]) -> Params:
    """Set up this process as a stage does. Returns the params of the working folder, with these settings of `train`."""
    set_up_interpreter()
    linux.keep_freed_memory()
    config = with_settings(params.load(), settings)
    determinism.make_deterministic(config.train.threads, config.train.deterministic)
    return config


@contextmanager
def ready(folder: Path, **settings: Any) -> Iterator[Ready]:
    """One process in a prepared folder, with these settings of `train` in place of the folder's."""
    os.chdir(folder)
    config = set_up(settings)
    world = rendezvous.world_of(os.environ, config.train.device)
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    images, _ = storage.open_images(data, config.run, world.device)
    with group.process_group(world, "auto", 600, rendezvous.connect_store(world, 600)):
        yield Ready(config, Dataset(data, images, IMAGENET), world)


@dataclass(frozen=True)
class Trainer:
    """A model in training: the same one for any stream of batches."""

    learner: Learner
    parallel_model: ParallelModel
    learning_rates: list[float]
    totals: Totals

    @classmethod
    def of(cls, ready: Ready) -> "Trainer":
        """The learner and the wrapper that `train.train` makes, for one process."""
        settings, world = ready.config.train, ready.world
        counts = ready.dataset.packed.counts("train")
        learner = make_learner(ready.config, make_model(ready.config, tuple(counts), world), counts, world)
        parts = settings.accumulation_steps
        parallel_model = PARALLELS[settings.parallel](learner.model, world, settings.deterministic, parts)
        rates = schedule.learning_rates(settings, ready.rows)
        return cls(learner, parallel_model, rates, Totals.zero(world.device, parts))

    def steps(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Take one step per batch. After the last step of the params the first one follows."""
        count = len(self.learning_rates)
        endless = loop.Lookahead(replace(batch, step=batch.step % count) for batch in batches)
        rates, begin = self.learning_rates, endless.begin
        return loop.train(self.learner, self.parallel_model, endless, rates, self.totals, begin)


def resident(batch: Batch) -> Iterator[Batch]:
    """One batch without end."""
    return (replace(batch, step=step) for step in itertools.count())


def steps_on_noise(model: str, batch: int, side: int, **settings: Any) -> Iterator[Batch]:
    """Endless steps of `on_noise`."""
    trainer, batches = on_noise(model, batch, side, **settings)
    return trainer.steps(batches)


def on_noise(model: str, batch: int, side: int, **settings: Any) -> tuple[Trainer, Iterator[Batch]]:
    """One process in training, and one batch of noise without end, which stays on the device.

    `batch`: the number of images; `side`: theirs, in pixels; `settings`: others of `train`.
    """
    size = {"model": model, "batch_size": batch, "crop": side, "epochs": 1000, "lr": 0.001}
    config = set_up({"parallel": "single", **size, **settings})
    world = rendezvous.world_of({}, config.train.device)
    ready = Ready(config, noise(batch, side, 5, world.device), world)
    return Trainer.of(ready), resident(next(ready.batches()))
