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

from pipeline import packed, params, residency, stage, train
from pipeline.engine import loop, world
from pipeline.engine.loop import Batch, Counts, Recipe
from pipeline.engine.parallel import PARALLELS, Spread
from pipeline.engine.precision import PRECISIONS, Precision
from pipeline.engine.stopping import Stopping
from pipeline.engine.world import World
from pipeline.packed import Packed
from pipeline.params import Params
from pipeline.residency import Squares


class Never(Stopping):
    """Nobody asks a benchmark to stop; a signal just ends it."""

    def __init__(self) -> None:
        """Nothing is watched."""

    def before(self, step: int) -> bool:
        return False


@dataclass(frozen=True)
class Ready:
    """The prepared squares of a folder, and who looks at them."""

    config: Params
    data: Packed
    squares: Squares
    place: World

    @property
    def rows(self) -> int:
        """How many pictures an epoch has."""
        return len(self.data.rows("train"))

    @classmethod
    def of_noise(cls, config: Params, place: World, pictures: int, side: int) -> "Ready":
        """Noise on the device, for what needs no photos."""
        data = noise(pictures, side, 5)
        return cls(config, data, Squares(torch.from_numpy(data.images).to(place.device), place.device), place)

    def having(self, **settings: Any) -> "Ready":
        """The same with other settings of `train`."""
        return replace(self, config=changed(self.config, settings))

    def batches(self, precision: Precision) -> Iterator[Batch]:
        """Training's own batches without end: after the last the first again."""
        settings = self.config.train
        while True:
            yield from train.batches(settings, self.data, self.squares, 0, self.place, 1, precision, Never())


def noise(pictures: int, side: int, classes: int) -> Packed:
    """Packed squares of noise uint8 [pictures, side, side, 3] in so many classes, all of them to train on."""
    return Packed(
        images=np.random.default_rng(0).integers(0, 256, (pictures, side, side, 3), np.uint8),
        paths=("",) * pictures,
        classes=tuple(str(number) for number in range(classes)),
        labels=np.arange(pictures) % classes,
        sizes=np.full((pictures, 2), side * 5 // 4, np.int32),
        splits=np.full(pictures, "train"),
        digest="",
    )


def changed(config: Params, settings: dict[str, Any]) -> Params:
    """The params with other settings of `train`."""
    return config.model_copy(update={"train": config.train.model_copy(update=settings)})


@contextmanager
def ready(folder: Path, **settings: Any) -> Iterator[Ready]:
    """One process in a prepared folder, with these settings of `train` in place of the folder's."""
    os.chdir(folder)
    stage.keep_freed_memory()  # as stage.main does
    config = changed(params.load(), settings)
    world.fix_arithmetic(config.train.threads, config.train.deterministic)
    place = world.from_env(os.environ, config.train.device)
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    squares, _ = residency.reside(data.images, config.run.residency, place.device, 1)
    with world.joined(place, 600):
        yield Ready(config, data, squares, place)


@dataclass(frozen=True)
class Trainer:
    """A model in training: the same one whatever it is fed."""

    spread: Spread
    recipe: Recipe
    counts: Counts

    @classmethod
    def of(cls, ready: Ready) -> "Trainer":
        """As `train.train` makes it, for one process."""
        settings, place = ready.config.train, ready.place
        learner = train.make_learner(ready.config, len(ready.data.classes), place)
        spread = PARALLELS[settings.parallel](learner.net, place, settings.deterministic, 1)
        criterion = nn.CrossEntropyLoss(label_smoothing=settings.label_smoothing)
        recipe = Recipe(criterion, learner.precision, learner.optimizer, learner.ema, settings.clip_norm)
        return cls(spread, recipe, Counts.zero(place.device, 1))

    def steps(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Take a step a batch."""
        return loop.train(self.spread, batches, self.recipe, self.counts)


def resident(batch: Batch) -> Iterator[Batch]:
    """One batch without end."""
    return (replace(batch, step=step) for step in itertools.count())


def exact(ready: Ready) -> Precision:
    """The precision for who only cuts pictures."""
    return PRECISIONS["fp32"](ready.place.device.type)
