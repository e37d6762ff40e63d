"""Images that a person should look at: dark, blurred, grey among colour images, of an odd size, and so on.

They are listed and counted, and not excluded. The measures and the limits, except those of a missing part, are those of
cleanvision (https://github.com/cleanlab/cleanvision); docs/data.md has the differences. appearance.py measures each
image. Some limits depend on all images of the set.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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


class Outlier(NamedTuple):
    """An image with a value beyond a limit."""

    row: int
    value: float
    limit: float


class Suspect(NamedTuple):
    """A row of suspects.csv, in the order of HEADER."""

    issue: str
    path: str
    label: str
    split: str
    value: float
    limit: float


Rows = Sequence[ImageRow]  # of the used images
Looks = Sequence[Appearance]  # of the same images


def _below(values: Iterable[float], limit: float) -> list[Outlier]:
    return [Outlier(row, value, limit) for row, value in enumerate(values) if value < limit]


def _above(values: Iterable[float], limit: float) -> list[Outlier]:
    return [Outlier(row, value, limit) for row, value in enumerate(values) if value > limit]


def _dark(_: Rows, looks: Looks) -> list[Outlier]:
    return _below((look.brightest for look in looks), DARK)


def _bright(_: Rows, looks: Looks) -> list[Outlier]:
    return _above((look.darkest for look in looks), BRIGHT)


def _blurred(_: Rows, looks: Looks) -> list[Outlier]:
    few_edges = _below((look.edges for look in looks), EDGES)
    return [outlier for outlier in few_edges if looks[outlier.row].evenness <= EVENNESS]


def _low_information(_: Rows, looks: Looks) -> list[Outlier]:
    return _below((look.entropy for look in looks), ENTROPY)


def _grey(_: Rows, looks: Looks) -> list[Outlier]:
    """The grey images, if more images have colour."""
    grey = _below((look.colour for look in looks), GREY)
    return grey if 2 * len(grey) < len(looks) else []


def _missing_part(_: Rows, looks: Looks) -> list[Outlier]:
    """The images of which a part is mid-grey, if more images have none: others have such a background."""
    grey = _above((look.missing for look in looks), MISSING)
    return grey if 2 * len(grey) < len(looks) else []


def _odd_aspect(images: Rows, _: Looks) -> list[Outlier]:
    return _below((min(image.width, image.height) / max(image.width, image.height) for image in images), ASPECT)


def _odd_size(images: Rows, _: Looks) -> list[Outlier]:
    """The images whose size, as the side of a square of equal area, is far from the usual one."""
    sides = np.sqrt(np.array([image.width * image.height for image in images], np.float64))
    first, middle, third = np.percentile(sides, [25, 50, 75])
    margin = RANGES * max(third - first, LEAST_RANGE * middle)
    low, high = float(first - margin), float(third + margin)
    rows = enumerate(sides.tolist())
    return [Outlier(row, side, low if side < low else high) for row, side in rows if not low <= side <= high]


ISSUES = {
    "dark": _dark,
    "bright": _bright,
    "blurred": _blurred,
    "low_information": _low_information,
    "grey": _grey,
    "odd_aspect": _odd_aspect,
    "odd_size": _odd_size,
    "missing_part": _missing_part,
}


def find(images: Rows, looks: Looks) -> list[Suspect]:
    """The suspicious ones of the used images: issue by issue, the one farthest beyond the limit first, then by path."""
    suspects = []
    for issue, find_outliers in ISSUES.items():
        outliers = find_outliers(images, looks)
        for row, value, limit in sorted(outliers, key=lambda o: (-abs(o.value - o.limit), images[o.row].path)):
            image = images[row]
            suspects.append(Suspect(issue, image.path, image.label, image.split, round(value, 3), round(limit, 3)))
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
