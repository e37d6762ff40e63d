"""Packed squares and boxes become the normalized crops a model sees. Pure tensors, on whatever device they lie.

One operation serves the random crops of training and the centre crop of evaluation: *resample a box to out × out*,
antialiased with a triangle filter (Pillow's BILINEAR, torchvision's `antialias=True`), separable, columns first.

It is exact, so its bits depend on no device, thread count, batch neighbour or order of summation: filter weights are
computed in whole numbers and rounded to multiples of 1/256 that sum to 1; pixels are whole; the columns' sums are
rounded to multiples of 1/4. Every product and every sum then fits into the 24 bits of a float32 (and into TF32's
inputs), and no rounding is left that an order could change. A test holds it against torchvision's transforms.
"""

import math

import torch
from torch import Tensor

from pipeline.sampling import GRID

# Mean and standard deviation of ImageNet's pixels [torchvision's reference], in units of a full pixel value.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

_ONE = 256  # filter weights are multiples of 1/256
_TO_QUARTERS = 1.5 * 2.0**21  # float32 has a unit of 1/4 here: adding and subtracting it rounds to a multiple of 1/4


def crops(squares: Tensor, boxes: Tensor, flips: Tensor, out: int) -> Tensor:
    """Cut, resample and normalize.

    squares: uint8 [n, S, S, 3]; boxes: int64 [n, 4] (x0, y0, x1, y1 in 1/256 pixels); flips: bool [n], mirrored.
    Returns float32 [n, 3, out, out], contiguous.
    """
    n, side = squares.shape[:2]
    mean = torch.tensor(MEAN, device=squares.device)[:, None, None] * 255
    scale = 1 / (torch.tensor(STD, device=squares.device)[:, None, None] * 255)
    columns = _filter(boxes[:, 0], boxes[:, 2], side, out)
    columns = torch.where(flips[:, None, None], columns.flip(1), columns)
    rows = _filter(boxes[:, 1], boxes[:, 3], side, out)
    pixels = squares.permute(0, 3, 1, 2).reshape(n, 3 * side, side).float()
    across = torch.bmm(pixels, columns.transpose(1, 2))
    across = ((across + _TO_QUARTERS) - _TO_QUARTERS).reshape(n, 3, side, out)
    both = torch.matmul(rows[:, None], across)
    return (both - mean) * scale


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
