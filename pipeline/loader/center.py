"""The centre crop of evaluation in NumPy: its box, and its pixels for one image.

The pixels have the bits of `resample.py`, which explains the arithmetic: every number here is exact, too. This module
does not import torch: that takes seconds, and a prediction with ONNX does not need it.
"""

import numpy as np
from numpy.typing import NDArray

GRID = 256  # boxes are given in 1/256 pixels of the packed image
WEIGHT_UNITS = 256  # filter weights are multiples of 1/WEIGHT_UNITS


def eval_boxes(sizes: NDArray[np.int32], packed_size: int, resize: int, crop: int) -> NDArray[np.int64]:
    """The boxes int64 [n, 4] of the centre crops: the short side resized to `resize`, then `crop` × `crop` pixels."""
    full = packed_size * GRID
    extent = full * crop * sizes.min(axis=1, keepdims=True).astype(np.int64) // (resize * sizes.astype(np.int64))
    start = (full - extent) // 2
    return clip_boxes(np.concatenate([start, start + extent], -1), packed_size)


def clip_boxes(boxes: NDArray[np.int64], packed_size: int) -> NDArray[np.int64]:
    """The boxes clipped to the packed image, at least one pixel wide and high."""
    start = np.clip(boxes[:, :2], 0, (packed_size - 1) * GRID)
    return np.concatenate([start, np.clip(boxes[:, 2:], start + GRID, packed_size * GRID)], -1)


def taps(side: int, out: int) -> int:
    """The largest number of the `side` input pixels in one of the `out` output pixels."""
    return min(side, max(2, -(-2 * side // out)))


def cut(image: NDArray[np.uint8], box: NDArray[np.int64], out: int) -> NDArray[np.float32]:
    """The box [4] of one image [S, S, 3] as pixels of 0 to 255, float32 [3, out, out]: multiples of 1/1024."""
    side = len(image)
    x0, y0, x1, y1 = box.tolist()
    columns, lines = triangle(x0, x1, side, out), triangle(y0, y1, side, out)
    across = np.tensordot(columns, image.astype(np.float32), (1, 1))  # [out, S, 3]
    quarters = np.rint(across * 4) / 4
    whole = np.tensordot(lines, quarters, (1, 1))  # [out, out, 3]
    return np.ascontiguousarray(whole.transpose(2, 0, 1), np.float32)


def triangle(start: int, end: int, side: int, out: int) -> NDArray[np.float32]:
    """`resample.triangle` of one axis of one box, in whole numbers, as a matrix float32 [out, side]."""
    count, pixel, extent = taps(side, out), 2 * out * GRID, end - start
    centre = 2 * out * start + (2 * np.arange(out) + 1) * extent
    radius = 2 * max(extent, out * GRID)
    first = np.clip((centre - radius + pixel // 2) // pixel, 0, side - count)[:, None]
    neighbours = first + np.arange(count)
    height = np.maximum(radius - np.abs(neighbours * pixel + pixel // 2 - centre[:, None]), 0)
    running = height.cumsum(1)
    total = running[:, -1:]
    rounded = (2 * WEIGHT_UNITS * running + total) // (2 * total)
    matrix = np.zeros((out, side), np.float32)
    np.put_along_axis(matrix, neighbours, np.diff(rounded, axis=1, prepend=0) / np.float32(WEIGHT_UNITS), 1)
    return matrix
