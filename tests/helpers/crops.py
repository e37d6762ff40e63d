"""Images, boxes and crops for the tests of resampling, and the crops as exact arithmetic gives them."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.dataset.normalization import IMAGENET
from pipeline.loader import augment, center, random_params, resample
from pipeline.loader.random_params import AugmentParams
from pipeline.loader.resample import Crops, Filter

AS_IT_IS = torch.zeros(3), torch.ones(3)
NORMALIZED = IMAGENET.on(torch.device("cpu"))
LAYOUTS = (torch.contiguous_format, torch.channels_last)


def random_images(n: int, side: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (n, side, side, 3), dtype=np.uint8))


def random_boxes(n: int, side: int, seed: int = 0) -> Tensor:
    sizes = np.random.default_rng(seed).integers(50, 500, (n, 2)).astype(np.int32)
    boxes, _ = random_params.crop_boxes(seed, [0], sizes, side, (0.08, 1.0), 0.5)
    return torch.from_numpy(boxes)


def jitter(n: int, strength: float = 0.4, seed: int = 0) -> NDArray[np.float32]:
    return random_params.jitter_factors(seed, [0], n, strength)


def drawn(n: int, side: int, out: int, seed: int = 0) -> AugmentParams:
    """Every draw of a training crop, switched on."""
    factors, erased = jitter(n, seed=seed), random_params.erase_boxes(seed, [0], n, out, 0.5)
    return AugmentParams(random_boxes(n, side, seed).numpy(), np.arange(n) % 2 == 0, factors, erased)


def mixes(n: int, out: int) -> list[random_params.Mix]:
    """Mixup, and CutMix."""
    return [random_params.draw_mix(0, 0, n, out, 0.2, 0.0), random_params.draw_mix(0, 0, n, out, 0.0, 1.0)]


def drawn_crops(n: int, images: int, side: int, out: int, seed: int) -> Crops:
    """Boxes of any place and size of 1 pixel or more, some at the edges, some as large as the image; any rows."""
    random = np.random.default_rng(seed)
    whole = side * center.GRID
    start = random.integers(0, whole - center.GRID, (n, 2), endpoint=True)
    end = random.integers(start + center.GRID, whole, endpoint=True)
    start, end = np.where(random.random((n, 2)) < 0.2, 0, start), np.where(random.random((n, 2)) < 0.2, whole, end)
    boxes, rows, flips = np.concatenate([start, end], 1), random.integers(0, images, n), random.random(n) < 0.5
    return Crops(torch.from_numpy(rows), torch.from_numpy(boxes), torch.from_numpy(flips), out)


def cropped(images: Tensor, boxes: Tensor, flips: Tensor, out: int) -> Tensor:
    """`augment.crops` of all images."""
    return augment.crops(images, torch.arange(len(images)), boxes.numpy(), flips.numpy(), out, IMAGENET)


def exact(images: Tensor, crops: Crops, mean: Tensor, scale: Tensor) -> Tensor:
    """The crops float32 [n, 3, size, size] by sums in float64, in another order than any form of `resample`."""
    side, boxes = images.shape[1], crops.boxes
    columns = dense(resample.triangle(boxes[:, 0], boxes[:, 2], side, crops.size).mirror(crops.flips), side)
    lines = dense(resample.triangle(boxes[:, 1], boxes[:, 3], side, crops.size), side)
    across = torch.einsum("nyxc,nox->nyoc", images[crops.rows].double().flip(2), columns.flip(2))
    quarters = torch.round(across * 4) / 4  # half to even, as the float unit rounds
    whole = torch.einsum("nyoc,npy->ncpo", quarters.flip(1), lines.flip(2)).float()
    return (whole - mean[:, None, None]) * scale[:, None, None]


def dense(filtered: Filter, side: int) -> Tensor:
    """The filters as matrices float64 [n, out, side]."""
    at = filtered.first[..., None] + torch.arange(filtered.weights.shape[1])
    zeros = torch.zeros(*filtered.first.shape, side, dtype=torch.float64)
    return zeros.scatter_(2, at, filtered.weights.transpose(1, 2).double())
