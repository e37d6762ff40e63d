"""Images that a person should look at: dark, blurred, grey among colour images, of an odd size, and so on.

They are listed and counted, and not excluded. The measures and the limits, except those of a missing part, are those of
cleanvision (https://github.com/cleanlab/cleanvision); docs/data.md has the differences. appearance.py measures each
image. Some limits depend on all images of the set.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.base import files, schema
from pipeline.base.text import visible
from pipeline.data.appearance import Appearance
from pipeline.dataset.split_table import ImageRow

NAME = "suspects.csv"
HEADER = ("issue", "path", "class", "split", "value", "limit")

DARK, BRIGHT = 0.32, 0.95  # dark: 99 % of the pixels are below the first brightness; bright: 95 % are above the second
EDGES = 34.25  # a blurred image is below this
EVENNESS = 19.84  # an image with few grey levels, such as a drawing, is above this: not blurred, even with few edges
ENTROPY = 3.0  # bits per value
GREY = 8  # a grey image has a smaller difference between two channels, in 255; JPEG changes grey by a few levels
ASPECT = 0.35  # short side / long side
MISSING = 0.02  # of the rows or columns
RANGES = 3  # an odd size is farther from the quartiles than this number of interquartile ranges
LEAST_RANGE = 0.1  # of the median: the least interquartile range, for sets in which most images have the same size


class Suspect(NamedTuple):
    """A row of suspects.csv, in the order of HEADER."""

    issue: str
    path: str
    label: str
    split: str
    value: float
    limit: float


Limits = tuple[float, float]  # a value below the first or above the second one is an issue


@dataclass(frozen=True)
class Issue:
    """A value of each image, and the limits, which may depend on the values of all images."""

    value: Callable[[ImageRow, Appearance], float]
    limits: Callable[[Sequence[float]], Limits]
    is_rare: bool = False  # no issue of a set in which half of the images have it: it is usual there


def _below(limit: float) -> Callable[[Sequence[float]], Limits]:
    return lambda _: (limit, math.inf)


def _above(limit: float) -> Callable[[Sequence[float]], Limits]:
    return lambda _: (-math.inf, limit)


def _usual(values: Sequence[float]) -> Limits:
    """The limits around the usual values."""
    first, middle, third = np.percentile(values, [25, 50, 75])
    margin = RANGES * max(third - first, LEAST_RANGE * middle)
    return float(first - margin), float(third + margin)


ISSUES = {
    "dark": Issue(lambda _, look: look.brightest, _below(DARK)),
    "bright": Issue(lambda _, look: look.darkest, _above(BRIGHT)),
    "blurred": Issue(lambda _, look: look.edges if look.evenness <= EVENNESS else math.inf, _below(EDGES)),
    "low_information": Issue(lambda _, look: look.entropy, _below(ENTROPY)),
    "grey": Issue(lambda _, look: look.colour, _below(GREY), is_rare=True),
    "odd_aspect": Issue(lambda row, _: min(row.width, row.height) / max(row.width, row.height), _below(ASPECT)),
    "odd_size": Issue(lambda row, _: math.sqrt(row.width * row.height), _usual),  # the side of a square of equal area
    "missing_part": Issue(lambda _, look: look.missing, _above(MISSING), is_rare=True),  # else it is the background
}


def find(images: Sequence[ImageRow], looks: Sequence[Appearance]) -> list[Suspect]:
    """The suspicious ones of the used images: issue by issue, the one farthest beyond the limit first, then by path."""
    suspects = []
    for name, issue in ISSUES.items():
        values = list(map(issue.value, images, looks))
        low, high = issue.limits(values)
        outliers = [
            (image, value, low if value < low else high)
            for image, value in zip(images, values, strict=True)
            if not low <= value <= high
        ]
        if issue.is_rare and 2 * len(outliers) >= len(images):
            continue
        for image, value, limit in sorted(outliers, key=lambda found: (-abs(found[1] - found[2]), found[0].path)):
            suspects.append(Suspect(name, image.path, image.label, image.split, round(value, 3), round(limit, 3)))
    return suspects


def read(path: Path) -> list[Suspect]:
    """The rows of suspects.csv. Raises UserError for a missing or damaged table."""
    with schema.reading(path, schema.checkout(path), KeyError, TypeError):
        rows = files.read_csv(path)
        if path.read_bytes().splitlines()[:1] != [",".join(HEADER).encode()]:
            raise ValueError(f"its columns are not {', '.join(HEADER)}")
        if unknown := {row["issue"] for row in rows} - set(ISSUES):
            raise ValueError(f"unknown issue {min(unknown)!r:.40}")
        return [
            Suspect(row["issue"], row["path"], row["class"], row["split"], float(row["value"]), float(row["limit"]))
            for row in rows
        ]


def counts(suspects: Sequence[Suspect]) -> dict[str, int]:
    """The number of images for each issue, for findings.csv."""
    number = Counter(suspect.issue for suspect in suspects)
    return {issue: number[issue] for issue in ISSUES}


def issue_words(issue: str) -> str:
    """An issue in words: `low information`."""
    return issue.replace("_", " ")


def lines(suspects: Sequence[Suspect], remedy: str) -> Iterator[str]:
    """A line for each issue, with the number of images and the first of them, then the remedy."""
    first: dict[str, str] = {}
    for suspect in suspects:
        first.setdefault(suspect.issue, suspect.path)
    for issue, number in counts(suspects).items():
        if number:
            yield f"suspicious, but used: {number:,} {issue_words(issue)} (first: {visible(first[issue])})"
    if suspects:
        yield remedy
