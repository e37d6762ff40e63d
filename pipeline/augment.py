"""Packed squares and boxes become the normalized crops a model sees. Pure tensors, on whatever device they lie.

One operation serves the random crops of training and the centre crop of evaluation: *resample a box to out × out*,
antialiased with a triangle filter (Pillow's BILINEAR, torchvision's `antialias=True`), separable, columns first.

It is exact, so its bits depend on no device, thread count, batch neighbour or order of summation: filter weights are
computed in whole numbers and rounded to multiples of 1/256 that sum to 1; pixels are whole; the columns' sums are
rounded to multiples of 1/4. Every product and every sum then fits into the 24 bits of a float32 (and into TF32's
inputs), and no rounding is left that an order could change. A test holds it against torchvision's transforms.

What training may add (colour jitter, erasing, mixing) does round, but only element by element, each operation a kernel
of its own and so rounded as IEEE 754 says on every device; the one sum, for the contrast, is of whole numbers. A
picture's bits therefore still depend on nothing but its own draws. A fused or compiled form would lose that.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.sampling import GRID, Draws, Mix

# Mean and standard deviation of ImageNet's pixels [torchvision's reference], in units of a full pixel value.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
LUMA = (0.2989, 0.587, 0.114)  # of red, green and blue [torchvision's rgb_to_grayscale]

_ONE = 256  # filter weights are multiples of 1/256
_TO_QUARTERS = 1.5 * 2.0**21  # float32 has a unit of 1/4 here: adding and subtracting it rounds to a multiple of 1/4


def crops(squares: Tensor, boxes: Tensor, flips: Tensor, out: int) -> Tensor:
    """Cut, resample and normalize.

    squares: uint8 [n, S, S, 3]; boxes: int64 [n, 4] (x0, y0, x1, y1 in 1/256 pixels); flips: bool [n], mirrored.
    Returns float32 [n, 3, out, out], contiguous.
    """
    return _normalized(_resampled(squares, boxes, flips, out))


def training_crops(squares: Tensor, draws: Draws, out: int) -> Tensor:
    """Crops as training sees them before they are mixed: cut, resampled, colours jittered, normalized, erased.

    squares: uint8 [n, S, S, 3], each with its row of the draws. Returns float32 [n, 3, out, out] on the squares'
    device; with all factors 1 and all rectangles empty, what `crops` returns.
    """
    boxes, flips = (torch.from_numpy(drawn).to(squares.device) for drawn in (draws.boxes, draws.flips))
    pixels = jittered(_resampled(squares, boxes, flips, out), draws.factors)
    return without(_normalized(pixels), draws.erased)


def jittered(pixels: Tensor, factors: NDArray[np.float32]) -> Tensor:
    """Brightness, then contrast, then saturation of pixels [n, 3, h, w] in [0, 255] times factors [n, 3].

    Each as in torchvision's ColorJitter, which draws the order, too; here it is fixed.
    """
    if (factors == 1).all():
        return pixels
    brightness, contrast, saturation = torch.from_numpy(factors).to(pixels.device).T[:, :, None, None, None]
    pixels = (pixels * brightness).clamp(0, 255)
    pixels = _blended(pixels, _mean(_grey(pixels)), contrast)
    return _blended(pixels, _grey(pixels), saturation)


def without(images: Tensor, erased: NDArray[np.int64]) -> Tensor:
    """Images [n, 3, h, w] with the rectangles erased [n, 4] (x0, y0, x1, y1 in pixels) set to 0: the mean colour."""
    if not erased.any():
        return images
    x0, y0, x1, y1 = torch.from_numpy(erased).to(images.device).T[:, :, None]
    y, x = (torch.arange(side, device=images.device) for side in images.shape[-2:])
    rows, columns = (y0 <= y) & (y < y1), (x0 <= x) & (x < x1)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)


def mixed(images: Tensor, mix: Mix) -> Tensor:
    """Mix images [m, 3, h, w] to images [n, 3, h, w], as `mix` says; the very `images` if nothing is mixed."""
    if mix.lam == 1:
        return images
    own, partners = (torch.from_numpy(numbers).to(images.device) for numbers in (mix.own, mix.partners))
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
    own, partners = (labels[torch.from_numpy(numbers).to(labels.device)] for numbers in (mix.own, mix.partners))
    every = torch.arange(classes, device=labels.device)
    targets = (own[:, None] == every).float() * mix.lam + (partners[:, None] == every).float() * (1 - mix.lam)
    return own if mix.lam >= 0.5 else partners, targets


def _resampled(squares: Tensor, boxes: Tensor, flips: Tensor, out: int) -> Tensor:
    """Boxes of the squares as float32 [n, 3, out, out], 0 to 255."""
    n, side = squares.shape[:2]
    columns = _filter(boxes[:, 0], boxes[:, 2], side, out)
    columns = torch.where(flips[:, None, None], columns.flip(1), columns)
    rows = _filter(boxes[:, 1], boxes[:, 3], side, out)
    pixels = squares.permute(0, 3, 1, 2).reshape(n, 3 * side, side).float()
    across = torch.bmm(pixels, columns.transpose(1, 2))
    across = ((across + _TO_QUARTERS) - _TO_QUARTERS).reshape(n, 3, side, out)
    return torch.matmul(rows[:, None], across)


def _normalized(pixels: Tensor) -> Tensor:
    """Pixels [n, 3, h, w], 0 to 255, as the model wants them."""
    mean = torch.tensor(MEAN, device=pixels.device)[:, None, None] * 255
    scale = 1 / (torch.tensor(STD, device=pixels.device)[:, None, None] * 255)
    return (pixels - mean) * scale


def _blended(pixels: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """`share` of the pixels and 1 - `share` (which may be negative) of the other, within [0, 255]."""
    return (pixels * share + other * (1 - share)).clamp(0, 255)


def _grey(pixels: Tensor) -> Tensor:
    """The luma [n, 1, h, w] of pixels [n, 3, h, w]."""
    weighted = pixels * torch.tensor(LUMA, device=pixels.device)[:, None, None]
    return weighted[:, :1] + weighted[:, 1:2] + weighted[:, 2:]


def _mean(grey: Tensor) -> Tensor:
    """The mean [n, 1, 1, 1] of each grey picture [n, 1, h, w], in the same bits whatever the order it is summed in."""
    total = (grey * 1024).round().long().sum((1, 2, 3), keepdim=True)  # whole numbers of 1/1024: exact
    # Not divided: CUDA would multiply by the reciprocal, which it rounds.
    return (total.double() * (1 / (1024 * grey[0].numel()))).float()


def _filter(start: Tensor, end: Tensor, side: int, out: int) -> Tensor:
    """Triangle filters of `out` pixels laid over [start, end), as float32 [n, out, side]; each row sums to exactly 1.

    All in whole numbers, the unit being 1 / (512 · out) pixel: an output pixel's centre and the filter's radius (one
    output pixel, or one input pixel where the box is enlarged) are whole in it.
    """
    device = start.device
    taps = min(side, max(2, math.ceil(2 * max(1.0, side / out))))  # the most that a radius reaches
    pixel = 2 * out * GRID
    extent = (end - start)[:, None]
    centre = 2 * out * start[:, None] + (2 * torch.arange(out, device=device) + 1) * extent
    radius = 2 * extent.clamp(min=out * GRID)
    first = torch.div(centre - radius + pixel // 2, pixel, rounding_mode="floor").clamp(0, side - taps)
    at = first[..., None] + torch.arange(taps, device=device)
    height = (radius[..., None] - ((2 * at + 1) * (pixel // 2) - centre[..., None]).abs()).clamp(min=0)
    # Running sums are rounded, not weights: so the rounded weights still sum to one.
    running = height.cumsum(-1)
    total = running[..., -1:]
    rounded = torch.div(2 * _ONE * running + total, 2 * total, rounding_mode="floor")
    weights = torch.diff(rounded, dim=-1, prepend=torch.zeros_like(total)).float() / _ONE
    return torch.zeros(len(start), out, side, device=device).scatter_(2, at, weights)
