"""Grey values of 16 bits as 8 bits, scaled by a range: that of the format, or that of the image itself.

All arithmetic is in integers, so the bytes are the same on every machine.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pipeline.config.params import Grey

WHITE = 2**16 - 1  # the full scale of 16 bits
DARK = 2**13  # an image without a value from here on uses less than an eighth of the full scale

Counts = NDArray[np.int64]  # [65536]: the number of pixels of each value


def count_values(values: NDArray[np.integer]) -> Counts:
    """The number of pixels of each value. Raises ValueError for a value that is no integer of 16 bits."""
    if values.dtype.kind not in "iu" or values.min() < 0 or values.max() > WHITE:
        raise ValueError("fractions, or grey values beyond 16 bits: no value is known to be white")
    return np.bincount(values.ravel(), minlength=WHITE + 1)


def lookup_table(counts: Counts, grey: Grey) -> NDArray[np.uint8]:
    """The 8-bit value of each 16-bit value, uint8 [65536]: 255 (v - low) / (high - low), rounded, from 0 to 255.

    An image of one value has no range of its own; it has the full scale.
    """
    low, high = RANGES[grey](counts)
    if low == high:
        low, high = 0, WHITE
    offsets = np.clip(np.arange(WHITE + 1), low, high) - low
    return ((510 * offsets + high - low) // (2 * (high - low))).astype(np.uint8)


def is_dark(counts: Counts) -> bool:
    """Whether the lightest value is below an eighth of the full scale, as in 12-bit images that are not scaled."""
    return bool(counts.any()) and _min_max(counts)[1] < DARK


def _full(counts: Counts) -> tuple[int, int]:
    return 0, WHITE


def _min_max(counts: Counts) -> tuple[int, int]:
    """The darkest and the lightest value; 0 and 0 if no pixel is counted."""
    values = np.flatnonzero(counts)
    return (int(values[0]), int(values[-1])) if len(values) else (0, 0)


def _percentile(counts: Counts) -> tuple[int, int]:
    """The smallest values with at least 1 % and 99 % of the pixels up to them; if both are equal, as `_min_max`."""
    cumulative, pixels = 100 * np.cumsum(counts), int(counts.sum())
    low, high = (int(value) for value in np.searchsorted(cumulative, [pixels, 99 * pixels]))
    return (low, high) if low < high else _min_max(counts)


RANGES: dict[Grey, Callable[[Counts], tuple[int, int]]] = {
    "full": _full,
    "minmax": _min_max,
    "percentile": _percentile,
}
