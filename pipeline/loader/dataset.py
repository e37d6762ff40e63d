"""The dataset of a training or an evaluation: the packed images, and what is known of each."""

from dataclasses import dataclass

from pipeline.data.packed import Packed
from pipeline.loader.storage import ImageStore


@dataclass(frozen=True)
class Dataset:
    """The packed images where run.residency keeps them, with their labels, sizes and splits."""

    packed: Packed
    images: ImageStore
