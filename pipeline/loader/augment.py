"""Packed images and boxes become the normalized crops a model sees, on the device where the images lie.

Cutting is exact (see resample.py). What training may add (colour jitter, erasing, mixing) does round, but only element
by element, each operation a kernel of its own and so rounded as IEEE 754 says on every device; the one sum, for the
contrast, is of whole numbers. An image's bits therefore still depend on nothing but its own draws. A fused or compiled
form would lose that.

Nothing here waits for a GPU: what is sent to it lies in pinned memory, and constants are sent once.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.loader import resample
from pipeline.loader.sampler import AugmentParams, Mix

# Mean and standard deviation of ImageNet's pixels [torchvision's reference], in units of a full pixel value.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
LUMA = (0.2989, 0.587, 0.114)  # of red, green and blue [torchvision's rgb_to_grayscale]


def crops(images: Tensor, rows: Tensor, boxes: NDArray[np.int64], flips: NDArray[np.bool_], out: int) -> Tensor:
    """Cut, resample and normalize.

    images: uint8 [N, S, S, 3]; rows: int64 [n], which of them, on the same device; boxes: [n, 4] (x0, y0, x1, y1 in
    1/256 pixels); flips: [n], mirrored. Returns float32 [n, 3, out, out], contiguous, on the images' device.
    """
    return _cut(images, rows, boxes, flips, out, *_normalization(images.device))


def training_crops(images: Tensor, rows: Tensor, params: AugmentParams, out: int) -> Tensor:
    """Crops as training sees them before they are mixed: cut, resampled, colours jittered, normalized, erased.

    images and rows: as of `crops`; draws: one for each of the rows. Returns float32 [n, 3, out, out] on the images'
    device; with all factors 1 and all rectangles empty, what `crops` returns.
    """
    if (params.factors == 1).all():
        return without(crops(images, rows, params.boxes, params.flips, out), params.erased)
    mean, scale = _normalization(images.device)
    pixels = _cut(images, rows, params.boxes, params.flips, out, torch.zeros_like(mean), torch.ones_like(scale))
    normalized = (jittered(pixels, params.factors) - mean[:, None, None]) * scale[:, None, None]
    return without(normalized, params.erased)


def jittered(pixels: Tensor, factors: NDArray[np.float32]) -> Tensor:
    """Brightness, then contrast, then saturation of pixels [n, 3, h, w] in [0, 255] times factors [n, 3].

    Each as in torchvision's ColorJitter, which draws the order, too; here it is fixed.
    """
    brightness, contrast, saturation = to_device(factors, pixels.device).T[:, :, None, None, None]
    pixels = (pixels * brightness).clamp(0, 255)
    pixels = _blended(pixels, _mean(_grey(pixels)), contrast)
    return _blended(pixels, _grey(pixels), saturation)


def without(images: Tensor, erased: NDArray[np.int64]) -> Tensor:
    """Images [n, 3, h, w] with the rectangles erased [n, 4] (x0, y0, x1, y1 in pixels) set to 0: the mean colour."""
    if not erased.any():
        return images
    x0, y0, x1, y1 = to_device(erased, images.device).T[:, :, None]
    y, x = (torch.arange(side, device=images.device) for side in images.shape[-2:])
    rows, columns = (y0 <= y) & (y < y1), (x0 <= x) & (x < x1)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)


def mixed(images: Tensor, mix: Mix) -> Tensor:
    """Mix images [m, 3, h, w] to images [n, 3, h, w], as `mix` says; the very `images` if nothing is mixed."""
    if mix.lam == 1:
        return images
    own, partners = (to_device(numbers, images.device) for numbers in (mix.own, mix.partners))
    x0, y0, x1, y1 = mix.box
    result = images[own]
    # Three operations, three roundings; `add(…, alpha=…)` and `lerp` round as often as the device likes.
    result[..., y0:y1, x0:x1].mul_(mix.keep).add_(images[partners, :, y0:y1, x0:x1] * (1 - mix.keep))
    return result


def mixed_labels(labels: Tensor, mix: Mix, classes: int) -> tuple[Tensor, Tensor]:
    """Of labels int64 [m]: the label of the larger part of each mixture, int64 [n], and what a loss is to aim at.

    That is class probabilities float32 [n, classes]; if nothing is mixed, the very `labels` are both.
    """
    if mix.lam == 1:
        return labels, labels
    own, partners = (labels[to_device(numbers, labels.device)] for numbers in (mix.own, mix.partners))
    every = torch.arange(classes, device=labels.device)
    targets = (own[:, None] == every).float() * mix.lam + (partners[:, None] == every).float() * (1 - mix.lam)
    return own if mix.lam >= 0.5 else partners, targets


def _cut(
    images: Tensor,
    rows: Tensor,
    boxes: NDArray[np.int64],
    flips: NDArray[np.bool_],
    out: int,
    mean: Tensor,
    scale: Tensor,
) -> Tensor:
    sent, turned = to_device(boxes, images.device), to_device(flips, images.device)
    return resample.resampled(images, rows, sent, turned, out, mean, scale)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor on the device: on the CPU with the same memory, on a GPU as an asynchronous copy."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


@cache
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Values [c] on the device, sent once: a copy from ordinary memory waits for the device."""
    return torch.tensor(values, device=device)


@cache
def _normalization(device: torch.device) -> tuple[Tensor, Tensor]:
    """What is taken from a pixel of 0 to 255, and what the difference is multiplied by, for each channel [3]."""
    return _constant(MEAN, device) * 255, 1 / (_constant(STD, device) * 255)


def _blended(pixels: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """`share` of the pixels and 1 - `share` (which may be negative) of the other, within [0, 255]."""
    return (pixels * share + other * (1 - share)).clamp(0, 255)


def _grey(pixels: Tensor) -> Tensor:
    """The luma [n, 1, h, w] of pixels [n, 3, h, w]."""
    weighted = pixels * _constant(LUMA, pixels.device)[:, None, None]
    return weighted[:, :1] + weighted[:, 1:2] + weighted[:, 2:]


def _mean(grey: Tensor) -> Tensor:
    """The mean [n, 1, 1, 1] of each grey image [n, 1, h, w], in the same bits whatever the order it is summed in."""
    total = (grey * 1024).round().long().sum((1, 2, 3), keepdim=True)  # whole numbers of 1/1024: exact
    # Not divided: CUDA would multiply by the reciprocal, which it rounds.
    return (total.double() * (1 / (1024 * grey[0].numel()))).float()
