"""Our own training as the benchmarks take it apart: the functions of `pipeline.train`, in a prepared copy."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pipeline import train
from pipeline.base import linux
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.data import packed
from pipeline.data.packed import Packed
from pipeline.engine import determinism, distributed, loop
from pipeline.engine.choices import PARALLELS, PRECISIONS
from pipeline.engine.loop import Batch, Recipe, Totals
from pipeline.engine.parallel import ParallelModel
from pipeline.engine.precision import Precision
from pipeline.engine.stopping import Stopping
from pipeline.engine.world import World
from pipeline.loader import storage
from pipeline.loader.storage import ImageStore


class Never(Stopping):
    """Nobody asks a benchmark to stop; a signal just ends it."""

    def __init__(self) -> None:
        """Nothing is watched."""

    def before(self, step: int) -> bool:
        return False


@dataclass(frozen=True)
class Ready:
    """The prepared images of a folder, and who looks at them."""

    config: Params
    data: Packed
    image_store: ImageStore
    world: World

    @property
    def rows(self) -> int:
        """How many images an epoch has."""
        return len(self.data.rows("train"))

    @classmethod
    def of_noise(cls, config: Params, world: World, images: int, side: int) -> "Ready":
        """Noise on the device, for what needs no photos."""
        data = noise(images, side, 5)
        return cls(config, data, ImageStore(torch.from_numpy(data.images).to(world.device), world.device), world)

    def having(self, **settings: Any) -> "Ready":
        """The same with other settings of `train`."""
        return replace(self, config=changed(self.config, settings))

    def batches(self, precision: Precision) -> Iterator[Batch]:
        """Training's own batches without end: after the last the first again."""
        settings = self.config.train
        while True:
            yield from train.batches(settings, self.data, self.image_store, 0, self.world, 1, precision, Never())


def noise(images: int, side: int, classes: int) -> Packed:
    """Packed images of noise uint8 [images, side, side, 3] in so many classes, all of them to train on."""
    return Packed(
        images=np.random.default_rng(0).integers(0, 256, (images, side, side, 3), np.uint8),
        paths=("",) * images,
        classes=tuple(str(number) for number in range(classes)),
        labels=np.arange(images) % classes,
        sizes=np.full((images, 2), side * 5 // 4, np.int32),
        splits=np.full(images, "train"),
        digest="",
    )


def changed(config: Params, settings: dict[str, Any]) -> Params:
    """The params with other settings of `train`."""
    return config.model_copy(update={"train": config.train.model_copy(update=settings)})


@contextmanager
def ready(folder: Path, **settings: Any) -> Iterator[Ready]:
    """One process in a prepared folder, with these settings of `train` in place of the folder's."""
    os.chdir(folder)
    linux.keep_freed_memory()  # as stage.main does
    config = changed(params.load(), settings)
    determinism.make_deterministic(config.train.threads, config.train.deterministic)
    world = World.from_env(os.environ, config.train.device)
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    image_store, _ = storage.reside(data.images, config.run.residency, world.device, 1)
    with distributed.join(world, 600):
        yield Ready(config, data, image_store, world)


@dataclass(frozen=True)
class Trainer:
    """A model in training: the same one whatever it is fed."""

    parallel_model: ParallelModel
    recipe: Recipe
    totals: Totals

    @classmethod
    def of(cls, ready: Ready) -> "Trainer":
        """As `train.train` makes it, for one process."""
        settings, world = ready.config.train, ready.world
        learner = train.make_learner(ready.config, len(ready.data.classes), world)
        parallel_model = PARALLELS[settings.parallel](learner.net, world, settings.deterministic, 1)
        criterion = nn.CrossEntropyLoss(label_smoothing=settings.label_smoothing)
        recipe = Recipe(criterion, learner.precision, learner.optimizer, learner.ema, settings.clip_norm)
        return cls(parallel_model, recipe, Totals.zero(world.device, 1))

    def steps(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Take a step a batch."""
        return loop.train(self.parallel_model, batches, self.recipe, self.totals)


def resident(batch: Batch) -> Iterator[Batch]:
    """One batch without end."""
    return (replace(batch, step=step) for step in itertools.count())


def exact(ready: Ready) -> Precision:
    """The precision for who only cuts images."""
    return PRECISIONS["fp32"](ready.world.device.type)
