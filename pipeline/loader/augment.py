"""Normalized and augmented crops of the packed images, on the device of the images.

Cropping is exact (see resample.py). Colour jitter, erasing and mixing round, but only element by element: every
operation is its own kernel, and IEEE 754 defines its result on every device. The only sum, for the contrast, is over
whole numbers. So the bits of an image depend only on its own random parameters. Fused or compiled kernels would round
differently.

Nothing here waits for a GPU: arrays are copied from pinned memory, and constants are copied once.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.dataset.normalization import Normalization, constant
from pipeline.loader.random_params import AugmentParams, Mix
from pipeline.loader.resample import Crops, resample

LUMA = (0.2989, 0.587, 0.114)  # of red, green and blue [torchvision's rgb_to_grayscale]


def crops(
    images: Tensor,
    rows: Tensor,
    boxes: NDArray[np.int64],
    flips: NDArray[np.bool_],
    out: int,
    normalization: Normalization,
) -> Tensor:
    """Normalized crops float32 [n, 3, out, out], contiguous, on the device of the images.

    images: uint8 [N, S, S, 3]; rows: int64 [n], the image of each crop, on the same device; boxes: [n, 4] (x0, y0, x1,
    y1 in 1/256 pixels); flips: [n], mirrored.
    """
    return resample(images, _make_crops(images, rows, boxes, flips, out), *normalization.on(images.device))


def training_crops(
    images: Tensor,
    rows: Tensor,
    params: AugmentParams,
    out: int,
    normalization: Normalization,
    layout: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """Training crops float32 [n, 3, out, out] before mixing: colour jitter, then normalized, then erased.

    images and rows: as in `crops`; params: one entry per row; layout: the memory format of the crops. If all factors
    are 1 and all rectangles are empty, the values are those of `crops`.
    """
    mean, scale = normalization.on(images.device)
    boxes = _make_crops(images, rows, params.boxes, params.flips, out)
    if (params.factors == 1).all():
        return erase(resample(images, boxes, mean, scale, layout), params.erasures)
    pixels = resample(images, boxes, torch.zeros_like(mean), torch.ones_like(scale), layout)
    normalized = (jitter_colors(pixels, params.factors) - mean[:, None, None]) * scale[:, None, None]
    return erase(normalized, params.erasures)


def jitter_colors(pixels: Tensor, factors: NDArray[np.float32]) -> Tensor:
    """Brightness, then contrast, then saturation of pixels [n, 3, h, w] in [0, 255] times factors [n, 3].

    Each is computed as in torchvision's ColorJitter. There the order is random, here it is fixed.
    """
    brightness, contrast, saturation = to_device(factors, pixels.device).T[:, :, None, None, None]
    pixels = (pixels * brightness).clamp(0, 255)
    pixels = _blend(pixels, _mean(_grey(pixels)), contrast)
    return _blend(pixels, _grey(pixels), saturation)


def erase(images: Tensor, boxes: NDArray[np.int64]) -> Tensor:
    """Images [n, 3, h, w] with the pixels in boxes [n, 4] (x0, y0, x1, y1 in pixels) set to 0: the mean colour."""
    if not boxes.any():
        return images
    x0, y0, x1, y1 = to_device(boxes, images.device).T[:, :, None]
    y, x = (torch.arange(side, device=images.device) for side in images.shape[-2:])
    rows, columns = (y0 <= y) & (y < y1), (x0 <= x) & (x < x1)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)


def mix_images(images: Tensor, mix: Mix) -> Tensor:
    """The mixed images [n, 3, h, w] of images [m, 3, h, w]; `images` itself if nothing is mixed."""
    if mix.lam == 1:
        return images
    positions, partners = to_device(mix.images, images.device), to_device(mix.partners, images.device)
    x0, y0, x1, y1 = mix.box
    result = images[positions]
    # Three operations, three roundings. How often `add(…, alpha=…)` and `lerp` round depends on the device.
    result[..., y0:y1, x0:x1].mul_(mix.keep).add_(images[partners, :, y0:y1, x0:x1] * (1 - mix.keep))
    return result


def mix_labels(labels: Tensor, mix: Mix, classes: int) -> tuple[Tensor, Tensor]:
    """The label of the larger share of each mixed image, int64 [n], and the targets of the loss, from labels int64 [m].

    Targets are class probabilities float32 [n, classes]. If nothing is mixed, both are `labels` itself.
    """
    if mix.lam == 1:
        return labels, labels
    image_labels = labels[to_device(mix.images, labels.device)]
    partner_labels = labels[to_device(mix.partners, labels.device)]
    numbers = torch.arange(classes, device=labels.device)
    image_targets = (image_labels[:, None] == numbers).float()
    partner_targets = (partner_labels[:, None] == numbers).float()
    targets = image_targets * mix.lam + partner_targets * (1 - mix.lam)
    return image_labels if mix.lam >= 0.5 else partner_labels, targets


def _make_crops(images: Tensor, rows: Tensor, boxes: NDArray[np.int64], flips: NDArray[np.bool_], out: int) -> Crops:
    """The crops with their tensors on the device of the images."""
    return Crops(rows, to_device(boxes, images.device), to_device(flips, images.device), out)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor on the device: on the CPU with the same memory, on a GPU as an asynchronous copy."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _blend(pixels: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """share · pixels + (1 - share) · other, clamped to [0, 255]. `share` may be greater than 1."""
    return (pixels * share + other * (1 - share)).clamp(0, 255)


def _grey(pixels: Tensor) -> Tensor:
    """The luma [n, 1, h, w] of pixels [n, 3, h, w]."""
    weighted = pixels * constant(LUMA, pixels.device)[:, None, None]
    return weighted[:, :1] + weighted[:, 1:2] + weighted[:, 2:]


def _mean(grey: Tensor) -> Tensor:
    """The mean [n, 1, 1, 1] of each grey image [n, 1, h, w]. Its bits do not depend on the order of the sum."""
    total = (grey * 1024).round().long().sum((1, 2, 3), keepdim=True)  # whole numbers of 1/1024: exact
    # A product, because CUDA divides by multiplying with the rounded reciprocal.
    return (total.double() * (1 / (1024 * grey[0].numel()))).float()
