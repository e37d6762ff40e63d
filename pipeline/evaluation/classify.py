"""Answers of the model in torch for image files: what `predict` prints."""

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import torch

from pipeline.engine.world import World
from pipeline.evaluation import inference, photos
from pipeline.evaluation.photos import Answer, LoadedImage
from pipeline.loader.storage import ImageStore
from pipeline.models.exported import ExportedModel


def answers(model: ExportedModel, loaded: Iterable[LoadedImage], batch_size: int, device: str) -> Iterator[Answer]:
    """The answer for each image."""
    world, remaining = World(rank=0, local_rank=0, size=1, device=torch.device(device)), iter(loaded)
    while batch := list(islice(remaining, batch_size)):
        image_store = ImageStore(torch.from_numpy(np.stack([image.pixels for image in batch])), world.device)
        sizes = np.array([image.size for image in batch], np.int32)
        log_probs = inference.predict_log_probs(
            model, image_store, sizes, np.arange(len(batch)), batch_size=batch_size, world=world
        )
        for image, probabilities in zip(batch, np.exp(log_probs), strict=True):
            yield photos.answer(image, model.classes, probabilities)
