"""Measures of one image: brightness, entropy, colour, edges, a missing part. They are the same on every CPU.

Brightness, entropy and colour are measured on SAMPLE × SAMPLE single pixels from the whole image: a reduced image would
have other frequencies of values. Edges are measured on a reduced image: a large photo has few edges per pixel, even if
it is sharp.
"""

from dataclasses import dataclass

import imagehash
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

SAMPLE = 64  # × SAMPLE pixels
SMALL = 64  # pixels of the longer side of the image whose edges are measured
WEIGHTS = (241, 691, 68)  # of red², green² and blue² in brightness², in thousandths: Finley's HSP colour model
FILL = 128  # in all channels: what libjpeg, which only warns, gives for data that a file lacks
DIGITS = 6  # of the entropy: the last bits of a logarithm and a sum differ between CPUs
LEVELS = np.arange(256)


@dataclass(frozen=True)
class Appearance:
    """Measures of an image that say whether a person should look at it."""

    darkest: float = 0.0  # 5 % of the pixels are at most so bright: from 0 to 1
    brightest: float = 0.0  # 99 % of the pixels are at most so bright
    entropy: float = 0.0  # bits per value of a channel: from 0 to 9.6
    colour: int = 0  # 99 % of the pixels have at most this difference between two channels: from 0 (grey) to 255
    edges: float = 0.0  # standard deviation of the differences between neighbouring pixels
    evenness: float = 0.0  # standard deviation of the numbers of pixels per grey level: large if few levels are used
    missing: float = 0.0  # the share of the rows, or of the columns if that is more, in which every pixel is FILL


NO_APPEARANCE = Appearance()


def measure_appearance(image: Image.Image, grey: Image.Image) -> Appearance:
    """The measures of an RGB image. `grey` is the same image in mode L."""
    sample = image.resize((SAMPLE, SAMPLE), Image.Resampling.NEAREST)
    red, green, blue = (np.asarray(channel).ravel() for channel in sample.split())
    squared_channels = (np.square(channel, dtype=np.int32) for channel in (red, green, blue))
    squared_brightness = sum(weight * square for weight, square in zip(WEIGHTS, squared_channels, strict=True))
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    darkest, brightest = _percentiles(squared_brightness, 5, 99)
    edges, evenness = _measure_edges(grey)
    is_fill = (np.asarray(sample) == FILL).all(axis=2)
    return Appearance(
        _brightness(darkest),
        _brightness(brightest),
        _entropy(sample.histogram()),
        _percentiles(spread, 99)[0],
        edges,
        evenness,
        max(float(is_fill.all(axis=axis).mean()) for axis in (0, 1)),  # columns: of a turned image
    )


def perceptual_hash(grey: Image.Image) -> int:
    """The 64-bit pHash of an image: which of its lowest 8 × 8 frequencies are above their median."""
    bits = imagehash.phash(grey).hash
    return int.from_bytes(np.packbits(bits).tobytes())


def _percentiles(values: NDArray[np.integer], *percents: int) -> list[int]:
    """For each of the percents, the smallest value with so many percent of the values up to it."""
    indices = [-(-len(values) * percent // 100) - 1 for percent in percents]
    partition = np.partition(values, indices)
    return [int(partition[index]) for index in indices]


def _brightness(square: int) -> float:
    """The brightness, 0 to 1, from its square in the unit of WEIGHTS."""
    return float(np.sqrt(square / 1000) / 255)


def _entropy(histogram: list[int]) -> float:
    """The entropy in bits of the values of all channels together."""
    counts = np.array(histogram)
    shares = counts[counts > 0] / counts.sum()
    return round(float((shares * np.log2(1 / shares)).sum()), DIGITS)


def _measure_edges(grey: Image.Image) -> tuple[float, float]:
    """The standard deviations of the edges, and of the numbers of pixels per grey level, of the reduced image."""
    longer = max(grey.size)
    if longer > SMALL:
        width, height = (max(1, side * SMALL // longer) for side in grey.size)
        reduced = grey.reduce(max(1, longer // (2 * SMALL)))  # at least twice as large: the resize is faster then
        grey = reduced.resize((width, height), Image.Resampling.BICUBIC)
    edge_histogram = np.array(grey.filter(ImageFilter.FIND_EDGES).histogram())
    return _deviation(LEVELS, edge_histogram), _deviation(np.array(grey.histogram()), np.ones(256, np.int64))


def _deviation(values: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """The standard deviation of values, each of which occurs `counts` times."""
    number, total, squares = int(counts.sum()), int(counts @ values), int(counts @ values**2)
    return float(np.sqrt((number * squares - total**2) / number**2))
