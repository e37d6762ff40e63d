"""One training as one of its processes sees it, and what it is made of."""

import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.errors import UserError
from pipeline.config.params import Params
from pipeline.data import packed
from pipeline.data.packed import Packed
from pipeline.engine.agreement import Facts
from pipeline.engine.rendezvous import Store
from pipeline.engine.world import World
from pipeline.loader import storage
from pipeline.loader.dataset import Dataset
from pipeline.training import identity, runs


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


def check_inputs(config: Params, world: World, facts: Facts) -> tuple[Packed, str]:
    """The packed images and the fingerprint of this run. Adds what all processes must have in common to `facts`.

    Raises UserError if this process cannot begin.
    """
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    if world.local_rank == 0:  # one process of each node reads the pixels; the others end with it
        packed.check_pixels(data, Path(config.paths.packed))
    packed.check_packed_size(data, Path(config.paths.packed), config.prepare.size)
    rows = len(data.rows("train"))
    if config.train.batch_size > rows:
        raise UserError(
            f"train.batch_size: {config.train.batch_size} is more than the training images ({rows}); "
            f"allowed: 1 to {rows}"
        )
    parts = runs.decisive(config, data.digest)
    facts |= runs.facts(config, parts, world)
    return data, identity.digest(parts)


def open_dataset(config: Params, data: Packed, world: World) -> Dataset:
    """The dataset, with its images where run.residency says."""
    images, where = storage.open_images(
        data.images, config.run.residency, world.device, config.run.processes // config.run.nodes
    )
    if world.is_main:
        print(f"train: the packed images are kept in: {where}", file=sys.stderr)
    return Dataset(data, images)
