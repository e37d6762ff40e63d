"""What decides a training."""

from dataclasses import dataclass

from pipeline.config.params import Params
from pipeline.learning.world import World
from pipeline.loader.storage import Dataset


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
