"""One training as one of its processes sees it."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.config.params import Params
from pipeline.engine.rendezvous import Store
from pipeline.engine.world import World
from pipeline.loader.dataset import Dataset


@dataclass(frozen=True)
class Job:
    """The inputs of a training. Nothing in it changes."""

    config: Params
    dataset: Dataset
    world: World
    store: Store  # of small values, which all processes see
    folder: Path  # of the run: see runs.py
    board: Path  # where TensorBoard's events go: the same folder, except in a queued experiment

    @property
    def rows(self) -> int:
        """The number of training images. It is counted anew with each call."""
        return len(self.dataset.packed.rows("train"))
