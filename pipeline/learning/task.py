"""What decides a training."""

from dataclasses import dataclass

from pipeline.config.params import Params
from pipeline.dataset.packed import Packed
from pipeline.learning.world import World
from pipeline.loader import storage
from pipeline.loader.storage import Dataset
from pipeline.models import network


@dataclass(frozen=True)
class Task:
    """The inputs of one process that decide the bytes of its training. Nothing in it changes."""

    config: Params
    dataset: Dataset
    world: World

    @property
    def rows(self) -> int:
        """The number of training images. Each call counts them."""
        return len(self.dataset.packed.rows("train"))


def open_dataset(config: Params, data: Packed, world: World) -> tuple[Dataset, str]:
    """The dataset, with its images where run.residency says; and a text with the name of that memory."""
    images, where = storage.open_images(data, config.run, world.device)
    return Dataset(data, images, network.normalization(config.train.model)), where
