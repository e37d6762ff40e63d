"""Which pictures, and which parts of them: pure functions of (seed, step), the same for every number of processes.

Draws are made for the whole global batch and then sliced by rank. Nothing is carried from step to step, so a resumed
run needs no sampler state. Random numbers are numpy's Philox, a counter-based generator: its key is (seed, purpose) and
its counter starts at (step or epoch), so every step has a stream of its own.
"""

from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=np.generic)

GRID = 256  # a box is given in 1/256 pixels of the packed square
ATTEMPTS = 10  # as torchvision's RandomResizedCrop tries before it falls back to a central crop
ORDER, CROP, DROPOUT = 1, 2, 3  # purposes


def generator(seed: int, purpose: int, index: int) -> np.random.Generator:
    """A stream of its own for every (seed, purpose, index)."""
    return np.random.Generator(np.random.Philox(key=[seed, purpose], counter=[0, 0, 0, index]))


def steps(epochs: int, rows: int, batch: int) -> int:
    """Steps of a training: only full batches, cut from the concatenated epochs."""
    return epochs * rows // batch


def epoch_end(epoch: int, rows: int, batch: int) -> int:
    """The number of steps after which epoch `epoch` (from 0) is over: its last full batch."""
    return steps(epoch + 1, rows, batch)


@lru_cache(maxsize=4)
def order(seed: int, epoch: int, rows: int) -> NDArray[np.int64]:
    """The permutation of `rows` row numbers that epoch `epoch` goes through, shape [rows]; read-only."""
    permutation = generator(seed, ORDER, epoch).permutation(rows)
    permutation.flags.writeable = False
    return permutation


def batch_rows(seed: int, step: int, batch: int, rows: int) -> NDArray[np.int64]:
    """The row numbers of the global batch of `step`, shape [batch], each in [0, rows)."""
    position, found = step * batch, []
    while position < (step + 1) * batch:
        epoch, start = divmod(position, rows)
        part = order(seed, epoch, rows)[start : start + (step + 1) * batch - position]
        found.append(part)
        position += len(part)
    return np.concatenate(found)


def part(values: NDArray[T], rank: int, size: int) -> NDArray[T]:
    """The contiguous share of `values` (first axis, divisible by `size`) that belongs to `rank`."""
    share = len(values) // size
    return values[rank * share : (rank + 1) * share]


def dropout_seed(seed: int, step: int, rank: int, size: int) -> int:
    """The seed of drop-out and its like in `step` on `rank` of `size`: each process draws its own."""
    return int(generator(seed, DROPOUT, step).integers(2**63, size=size)[rank])


def crop_boxes(
    seed: int,
    step: int,
    sizes: NDArray[np.int32],
    square: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    flip: float,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Random resized crops of a global batch, after torchvision's RandomResizedCrop and RandomHorizontalFlip.

    `sizes` [batch, 2] are the original widths and heights: `scale` (share of the area) and `ratio` (width / height)
    are meant in the original picture, which `prepare` squeezed to a square of `square` pixels. Crops are not rounded
    to whole pixels. Returns boxes [batch, 4] (x0, y0, x1, y1 in 1/256 pixels of the square) and flips [batch].
    """
    random = generator(seed, CROP, step)
    shape, place, mirror = (
        random.random((len(sizes), ATTEMPTS, 2)),
        random.random((len(sizes), 2)),
        random.random(len(sizes)),
    )
    full = sizes.astype(np.float64)[:, None, :]
    area = full[..., 0] * full[..., 1] * (scale[0] + (scale[1] - scale[0]) * shape[..., 0])
    low, high = np.log(ratio[0]), np.log(ratio[1])
    # Rounded, so that the last bit of exp, which differs between machines, decides nothing.
    aspect = np.rint(np.exp(low + (high - low) * shape[..., 1]) * 2**20) / 2**20
    tried = np.stack([np.sqrt(area * aspect), np.sqrt(area / aspect)], -1)  # [batch, ATTEMPTS, 2] width, height
    fits = np.logical_and.reduce(tried <= full, axis=-1)
    found = np.logical_or.reduce(fits, axis=1)
    chosen = tried[np.arange(len(sizes)), fits.argmax(axis=1)]
    width, height = full[:, 0, 0], full[:, 0, 1]
    central = np.stack([np.minimum(width, height * ratio[1]), np.minimum(height, width / ratio[0])], -1)
    extent = np.where(found[:, None], chosen, central)
    start = np.where(found[:, None], place, 0.5) * (full[:, 0] - extent)
    corners = np.concatenate([start, start + extent], -1) / np.tile(full[:, 0], 2) * (square * GRID)
    return _at_least_a_pixel(np.rint(corners).astype(np.int64), square), mirror < flip


def eval_boxes(sizes: NDArray[np.int32], square: int, resize: int, crop: int) -> NDArray[np.int64]:
    """The boxes [n, 4] of "resize the short side to `resize`, cut `crop` × `crop` at the centre", in whole numbers."""
    whole = square * GRID
    extent = whole * crop * sizes.min(axis=1, keepdims=True).astype(np.int64) // (resize * sizes.astype(np.int64))
    start = (whole - extent) // 2
    return _at_least_a_pixel(np.concatenate([start, start + extent], -1), square)


def _at_least_a_pixel(boxes: NDArray[np.int64], square: int) -> NDArray[np.int64]:
    """Boxes inside the square, at least one of its pixels wide and high."""
    start = np.clip(boxes[:, :2], 0, (square - 1) * GRID)
    return np.concatenate([start, np.clip(boxes[:, 2:], start + GRID, square * GRID)], -1)
