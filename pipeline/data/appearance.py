"""What one image looks like, in a few numbers, which are the same on every CPU.

Brightness, entropy and colour are those of SAMPLE × SAMPLE single pixels, which are spread over the image: unlike in a
reduced image, their values are as frequent as in the whole one. Edges are those of a reduced image: a large photo has
few edges per pixel though it is sharp.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

SAMPLE = 64  # × SAMPLE pixels
SMALL = 64  # pixels of the longer side in which edges are looked for
WEIGHTS = (241, 691, 68)  # of red², green² and blue² in brightness², in thousandths: Finley's HSP colour model
DIGITS = 6  # of the entropy: a logarithm and a sum have other last bits on other CPUs
LEVELS = np.arange(256)


@dataclass(frozen=True)
class Appearance:
    """Measures of an image that tell whether a person should look at it."""

    darkest: float = 0.0  # 5 % of the pixels are at most so bright: from 0 to 1
    brightest: float = 0.0  # 99 % of the pixels are at most so bright
    entropy: float = 0.0  # bits per value of a channel: from 0 to 9.6
    colour: int = 0  # 99 % of the pixels have at most this difference between two channels: from 0 (grey) to 255
    edges: float = 0.0  # standard deviation of the differences between neighbouring pixels
    evenness: float = 0.0  # standard deviation of the numbers of pixels per grey level: large if few levels are used


NOT_SEEN = Appearance()


def of(image: Image.Image, grey: Image.Image) -> Appearance:
    """The measures of an RGB image. `grey` is the same image in mode L."""
    sample = image.resize((SAMPLE, SAMPLE), Image.Resampling.NEAREST)
    red, green, blue = (np.asarray(channel).ravel() for channel in sample.split())
    squares = (np.square(channel, dtype=np.int32) for channel in (red, green, blue))
    squared = sum(weight * square for weight, square in zip(WEIGHTS, squares, strict=True))
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    darkest, brightest = _percentiles(squared, 5, 99)
    edges, evenness = _sharpness(grey)
    return Appearance(
        _brightness(darkest),
        _brightness(brightest),
        _entropy(sample.histogram()),
        _percentiles(spread, 99)[0],
        edges,
        evenness,
    )


def _percentiles(values: NDArray[np.integer], *percents: int) -> list[int]:
    """For each of the percents, the smallest value with so many percent of the values up to it."""
    places = [-(-len(values) * percent // 100) - 1 for percent in percents]
    ordered = np.partition(values, places)
    return [int(ordered[place]) for place in places]


def _brightness(squared: int) -> float:
    """The brightness, 0 to 1, of a square as the WEIGHTS make it."""
    return float(np.sqrt(squared / 1000) / 255)


def _entropy(histogram: list[int]) -> float:
    """The entropy in bits of the values of all channels together."""
    counts = np.array(histogram)
    shares = counts[counts > 0] / counts.sum()
    return round(float((shares * np.log2(1 / shares)).sum()), DIGITS)


def _sharpness(grey: Image.Image) -> tuple[float, float]:
    """The standard deviations of the edges, and of the numbers of pixels per grey level, of the reduced image."""
    longer = max(grey.size)
    if longer > SMALL:
        width, height = (max(1, side * SMALL // longer) for side in grey.size)
        reduced = grey.reduce(max(1, longer // (2 * SMALL)))  # at least twice as large: the resize is faster then
        grey = reduced.resize((width, height), Image.Resampling.BICUBIC)
    differences = np.array(grey.filter(ImageFilter.FIND_EDGES).histogram())
    return _deviation(LEVELS, differences), _deviation(np.array(grey.histogram()), np.ones(256, np.int64))


def _deviation(values: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """The standard deviation of values that are there so many times."""
    number, total, squares = int(counts.sum()), int(counts @ values), int(counts @ values**2)
    return float(np.sqrt((number * squares - total**2) / number**2))
