"""Resampling of a box of a packed image to size × size pixels.

The filter is an antialiased triangle (Pillow's BILINEAR, torchvision's `antialias=True`), separable, columns first.
Random crops in training and centre crops in evaluation both use it.

The result is exact, so its bits do not depend on device, thread count, other images of the batch or order of summation:
filter weights are computed in whole numbers and rounded to multiples of 1/256 that sum to 1; pixels are whole numbers;
the sums over columns are rounded to multiples of 1/4. Every product and every sum then fits into the 24 bits of a
float32. No order, fused operation or compiler can round differently.

There are two forms with the same bits. The CPU has a compiled loop over the images. A GPU has two kernels, which
compute the same sums as whole numbers. `center.py` has the sums for one image in NumPy.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pipeline.loader import kernels
from pipeline.loader.center import GRID, WEIGHT_UNITS, taps
from pipeline.loader.resample_cuda import SOURCE

TO_QUARTERS = 1.5 * 2.0**21  # adding and subtracting it rounds to 1/4


@dataclass(frozen=True)
class Crops:
    """n boxes of images; each is resampled to size × size. All tensors are on the device of the images."""

    rows: Tensor  # int64 [n]: the image of each box
    boxes: Tensor  # int64 [n, 4]: x0, y0, x1, y1 in 1/256 pixels
    flips: Tensor  # bool [n]: mirrored
    size: int


@dataclass(frozen=True)
class Filter:
    """The filters of one axis for n boxes: an output pixel is a weighted sum of `count` inputs from `first` on."""

    first: Tensor  # int64 [n, out]
    weights: Tensor  # float32 [n, count, out]: multiples of 1/256 that sum to exactly 1

    def mirror(self, flips: Tensor) -> "Filter":
        """The filters with the output pixels in reverse order for the boxes where flips [n] is true."""
        return Filter(
            torch.where(flips[:, None], self.first.flip(1), self.first),
            torch.where(flips[:, None, None], self.weights.flip(2), self.weights),
        )


def triangle(start: Tensor, end: Tensor, side: int, out: int) -> Filter:
    """The triangle filters that resample one axis of n boxes to `out` pixels.

    start and end: int64 [n], the boxes' edges in 1/256 pixels of an image of `side` pixels. The filter's radius is one
    output pixel, or one input pixel if the box is enlarged.

    Every number is an integer in units of 1 / (512 · out) pixel and below 2^53, so float64 holds it exactly. Quotients
    rounded down are exact too: one that is not an integer is too far from the next integer to be rounded to it.
    """
    device, count = start.device, taps(side, out)
    # A tensor, because a GPU divides by a number by multiplying with its rounded reciprocal.
    pixel = torch.full((1,), 2 * out * GRID, dtype=torch.float64, device=device)
    begin, extent = start[:, None].double(), (end - start)[:, None].double()
    centre = 2 * out * begin + (2 * torch.arange(out, device=device) + 1) * extent
    radius = 2 * extent.clamp(min=out * GRID)
    first = ((centre - radius + pixel / 2) / pixel).floor().clamp(0, side - count)
    # The centre of each input pixel, from the edge of the first.
    neighbour = pixel * torch.arange(count, device=device)[:, None] + pixel / 2
    height = (radius[:, None] - ((first * pixel - centre)[:, None] + neighbour).abs()).clamp(min=0)
    # Running sums are rounded, not weights: then the rounded weights still sum to one.
    running = torch.stack(list(accumulate(height.unbind(1))), 1)
    total = running[:, -1:]
    rounded = ((2 * WEIGHT_UNITS * running + total) / (2 * total)).floor().float() / WEIGHT_UNITS
    return Filter(first.long(), torch.cat([rounded[:, :1], rounded[:, 1:] - rounded[:, :-1]], 1))


def resample(
    images: Tensor, crops: Crops, mean: Tensor, scale: Tensor, layout: torch.memory_format = torch.contiguous_format
) -> Tensor:
    """The crops of images uint8 [N, S, S, 3] as float32 [n, 3, size, size] in a memory format: (pixel - mean) · scale.

    mean and scale: float32 [3], one number per channel. The CPU uses as many threads as torch may.
    """
    if images.is_cuda:
        return by_kernels(images, crops, mean, scale, layout)
    return by_loops(images, crops, mean, scale).contiguous(memory_format=layout)


def by_kernels(
    images: Tensor,
    crops: Crops,
    mean: Tensor,
    scale: Tensor,
    layout: torch.memory_format,
    launch: Callable[[str, str, int, list[Tensor | int]], None] = kernels.launch,
) -> Tensor:
    """`resample` as two kernels of resample_cuda.py. Runs on a GPU. Tests pass a `launch` that runs on the CPU."""
    n, side, size, device = len(crops.rows), images.shape[1], crops.size, images.device
    count = taps(side, size)
    inputs = (images, crops.rows, crops.boxes, crops.flips, mean, scale)
    assert all(tensor.is_contiguous() for tensor in inputs)  # a kernel computes the address of an element
    first = torch.empty(n, 2, size, dtype=torch.int32, device=device)
    weights = torch.empty(n, 2, count, size, dtype=torch.int32, device=device)
    output = torch.empty(n, 3, size, size, device=device, memory_format=layout)
    blocks = -(-n * 2 * size // kernels.THREADS)
    launch(SOURCE, "weigh", blocks, [crops.boxes, crops.flips, first, weights, n, side, size, count])
    sizes = [side, size, count, output.stride(1), output.stride(3)]
    blocks = n * -(-size * size // kernels.THREADS)
    launch(SOURCE, "cut", blocks, [images, crops.rows, first, weights, mean, scale, output, *sizes])
    return output


def by_loops(images: Tensor, crops: Crops, mean: Tensor, scale: Tensor) -> Tensor:
    """`resample` as a compiled loop over the images. Runs on the CPU."""
    n, side, out, threads = len(crops.rows), images.shape[1], crops.size, torch.get_num_threads()
    columns = triangle(crops.boxes[:, 0], crops.boxes[:, 2], side, out).mirror(crops.flips)
    lines = triangle(crops.boxes[:, 1], crops.boxes[:, 3], side, out)
    # From NumPy, which asks for huge pages: the system clears these faster.
    output = torch.from_numpy(np.empty((n, 3, out, out), np.float32))
    fill = _kernel(side, out)
    shared = (images.numpy(), mean.numpy(), scale.numpy())
    by_crop = (crops.rows, columns.first, columns.weights, lines.first, lines.weights, output)

    def fill_part(number: int) -> None:
        part = slice(n * number // threads, n * (number + 1) // threads)
        fill(*shared, *(tensor[part].numpy() for tensor in by_crop))

    if threads == 1:
        fill_part(0)
    else:
        list(_pool(threads).map(fill_part, range(threads)))
    return output


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "resample")


@cache
def _kernel(side: int, out: int) -> Callable[..., None]:
    """The compiled loop for one pair of sizes. As constants of its code they make it 1.2 times as fast [measured].

    It is compiled when the pair is first used (about 3 s), and cached beside this file in __pycache__. If that is not
    writable, every process compiles it: numba's next choice is the user's home, and without one a folder named ~.
    """
    import numba  # here, because the import takes a second and a GPU does not need it

    # numba reads this when it compiles a loop. It makes `resample` 1.6 times as fast [measured].
    numba.config.SLP_VECTORIZE = 1  # type: ignore[attr-defined]  # numba adds its settings to the module at run time
    folder = Path(__file__).parent
    if (folder / "__pycache__").exists():
        folder /= "__pycache__"
    is_writable = os.access(folder, os.W_OK)

    # Unsigned: numba checks signed indices for negative values, and then does not vectorize the loops.
    index = np.uintp
    outs, count, one, two, three = index(out), index(taps(side, out)), index(1), index(2), index(3)
    big, zero = np.float32(TO_QUARTERS), np.float32(0)

    def fill(images, mean, scale, rows, first_x, weights_x, first_y, weights_y, made):  # type: ignore[no-untyped-def]
        # The image after its columns are resampled, and one line before and after; the lines are longer, see below.
        across = np.empty((3, side, out), np.float32)
        red_line, green_line, blue_line = across
        before = np.zeros(3 * side + 16, np.float32)
        after = np.empty(3 * out + 16, np.float32)
        for n in range(len(rows)):
            image = images[rows[n]].reshape(side, 3 * side)
            top, bottom = index(first_y[n, 0]), index(first_y[n, out - 1]) + count  # of the lines in the box
            one_end, other_end = first_x[n, 0], first_x[n, out - 1]
            left, right = three * index(min(one_end, other_end)), three * (index(max(one_end, other_end)) + count)
            for y in range(top, bottom):
                pixels = image[y]
                for i in range(left, right):
                    before[i] = np.float32(pixels[i])
                for o in range(outs):
                    start = three * index(first_x[n, o])
                    # Four sums, because a register holds four. The fourth is no channel; the next pixel overwrites it.
                    red = green = blue = waste = zero
                    for k in range(count):
                        weight, at = weights_x[n, k, o], start + three * k
                        red += before[at] * weight
                        green += before[at + one] * weight
                        blue += before[at + two] * weight
                        waste += before[at + three] * weight
                    to = three * o
                    after[to] = (red + big) - big
                    after[to + one] = (green + big) - big
                    after[to + two] = (blue + big) - big
                    after[to + three] = (waste + big) - big
                for o in range(outs):
                    at = three * o
                    red_line[y - top, o] = after[at]
                    green_line[y - top, o] = after[at + one]
                    blue_line[y - top, o] = after[at + two]
            for channel in range(3):
                for o in range(outs):
                    start = index(first_y[n, o]) - top
                    result = made[n, channel, o]
                    for i in range(outs):
                        value = zero
                        for k in range(count):
                            value += across[channel, start + k, i] * weights_y[n, k, o]
                        result[i] = (value - mean[channel]) * scale[channel]

    # Without the interpreter's lock; nothing is checked. A product and a sum may become one operation, rounded once:
    # no number here needs rounding.
    kernel: Callable[..., None] = numba.njit(nogil=True, cache=is_writable, error_model="numpy", fastmath={"contract"})(
        fill
    )
    return kernel
