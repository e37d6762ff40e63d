"""Batches for training and for evaluation, cut from the packed images.

A plan is made one step ahead (see `threads.prefetch`): row numbers, random parameters and, for a GPU, the images in
pinned memory. The batch is computed from the plan on the device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.base import threads
from pipeline.config import resolution
from pipeline.config.params import Train
from pipeline.dataset.normalization import Normalization
from pipeline.dataset.packed import Packed
from pipeline.loader import augment, random_params, sampler
from pipeline.loader.random_params import AugmentParams, Mix
from pipeline.loader.sampler import Share
from pipeline.loader.storage import Collected, Dataset, ImageStore

AT_ONCE = 8  # steps that are planned together: NumPy takes as long for the calls of one step as for 64 images


# name → the order in which torch stores the numbers of a batch of images [n, c, h, w]
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class Batch:
    """This process's share of the global batch of one step.

    images: normalized [n, 3, h, w]; labels: int64 [n]; targets: what the loss compares with: the labels, or class
    probabilities [n, classes] if images are mixed. Dropout is seeded with `seed` plus the microbatch's number.
    """

    step: int
    images: Tensor
    labels: Tensor
    targets: Tensor
    seed: int


@dataclass(frozen=True)
class Plan:
    """This process's part of one global batch: images, labels and random parameters. The images are not cropped yet."""

    step: int
    images: Collected
    side: int  # of the crops, in pixels
    labels: NDArray[np.int64]  # of these images
    params: AugmentParams
    mix: Mix


@dataclass(frozen=True)
class CenterCrops:
    """The centre crops of n images that evaluation uses."""

    rows: NDArray[np.int64]  # [n]
    boxes: NDArray[np.int64]  # [n, 4], see `center.eval_boxes`
    size: int  # pixels per side of a crop
    normalization: Normalization

    def batches(self, batch_size: int) -> list["CenterCrops"]:
        """The crops in batches of `batch_size`, in order. The last batch is filled up with its last crop.

        The number of images in a batch decides the last bits of each answer; their order and the other images do not.
        """
        count = len(self.rows)
        filled = np.minimum(np.arange(-(-count // batch_size) * batch_size), count - 1).reshape(-1, batch_size)
        return [replace(self, rows=self.rows[positions], boxes=self.boxes[positions]) for positions in filled]


def augment_params(
    settings: Train, data: Packed, rows: NDArray[np.int64], steps: Sequence[int], side: int
) -> AugmentParams:
    """The random parameters of global batches: of these rows [steps · batch] of the packed images, cut to `side`."""
    seed, size = settings.seed, settings.batch_size
    return AugmentParams(
        *random_params.crop_boxes(seed, steps, data.sizes[rows], data.size, settings.crop_scale, settings.flip),
        random_params.jitter_factors(seed, steps, size, settings.color_jitter),
        random_params.erase_boxes(seed, steps, size, side, settings.erasing),
    )


def plans(dataset: Dataset, settings: Train, share: Share, first_step: int, at_once: int = AT_ONCE) -> Iterator[Plan]:
    """The plans of this process's share of every global batch, from `first_step` to the last step.

    The random parameters of up to `at_once` steps with crops of one side are computed together.
    """
    data, seed, size = dataset.packed, settings.seed, settings.batch_size
    rows = data.rows("train")
    remaining = range(first_step, sampler.steps(settings.epochs, len(rows), size))
    while remaining:
        sides = [
            resolution.side_of_epoch(settings, sampler.epoch_of_step(step, len(rows), size))
            for step in remaining[:at_once]
        ]
        side = sides[0]
        steps = remaining[: sides.count(side)]  # sides only rise
        remaining = remaining[len(steps) :]
        batches = rows[np.concatenate([sampler.batch_rows(seed, step, size, len(rows)) for step in steps])]
        params = augment_params(settings, data, batches, steps, side)
        for start, step in zip(range(0, len(batches), size), steps, strict=True):
            # Partners of mixed images may belong to other processes: `positions` are the images that this process cuts.
            mix = random_params.draw_mix(seed, step, size, side, settings.mixup, settings.cutmix)
            positions, mix = random_params.local(mix, share)
            positions = start + positions
            images = batches[positions]
            yield Plan(step, dataset.images.collect(images), side, data.labels[images], params.at(positions), mix)


def train_batches(dataset: Dataset, settings: Train, share: Share, first_step: int) -> Iterator[Batch]:
    """This process's share of every global batch, from `first_step` to the last step, on the device."""
    store, classes = dataset.images, len(dataset.packed.classes)
    layout = MEMORY_FORMATS[settings.memory_format]
    for plan in threads.prefetch(plans(dataset, settings, share, first_step), store.ahead):
        crops = augment.training_crops(*store.send(plan.images), plan.params, plan.side, dataset.normalization, layout)
        labels, targets = augment.mix_labels(augment.to_device(plan.labels, store.device), plan.mix, classes)
        yield Batch(
            step=plan.step,
            images=augment.mix_images(crops, plan.mix).contiguous(memory_format=layout),
            labels=labels,
            targets=targets,
            seed=sampler.dropout_seed(settings.seed, plan.step),
        )


def eval_batches(store: ImageStore, batches: Sequence[CenterCrops]) -> Iterator[Tensor]:
    """Each batch of centre crops as normalized images float32 [n, 3, size, size], on the device."""
    images_of_batches = ((crops, store.collect(crops.rows)) for crops in batches)
    for crops, images in threads.prefetch(images_of_batches, store.ahead):
        flips = np.zeros(len(crops.rows), np.bool_)
        yield augment.crops(*store.send(images), crops.boxes, flips, crops.size, crops.normalization)
