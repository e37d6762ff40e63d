"""Which answers a run accepts, and what its limits promise (models/acceptance.py): counted on the test images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.evaluation import metrics
from pipeline.models import acceptance
from pipeline.models.acceptance import Limits
from pipeline.reporting.outcome import Answer

MOST_REFUSED = 12  # test images on a page


@dataclass(frozen=True)
class Share:
    """The number of images, of those with a property (a mean, if several models answer), and the 95 % interval."""

    images: int
    count: float
    low: float
    high: float

    @property
    def share(self) -> float:
        """The part of the images that has the property."""
        return self.count / max(self.images, 1)


@dataclass(frozen=True)
class Reliance:
    """What the limits make of the test images. Without limits (`limits.reason`) all numbers are 0."""

    limits: Limits
    promise: tuple[float, float]  # 95 % interval of the coverage, as so few validation images give it
    accepted: Share  # images that get a class or a set of classes
    covered: Share  # images whose class is in their set
    single: int  # images that get one class
    refused: Sequence[Answer]  # the most probable first, at most MOST_REFUSED


@dataclass(frozen=True)
class Coverage:
    """What the limits of several models make of their test images; without limits (`reason`) all numbers are 0."""

    asked: float  # evaluate.coverage
    accepted: Share
    covered: Share
    reason: str = ""


def share(count: float, images: int) -> Share:
    """The share of a count in a number of images, one or more."""
    return Share(images, count, *metrics.wilson(count, images))


NO_SHARE = Share(0, 0, 0.0, 0.0)
NO_COVERAGE = Coverage(0.0, NO_SHARE, NO_SHARE, "no limit is known")


def coverage(parts: Iterable[tuple[Limits, NDArray[np.float64], NDArray[np.int64]]], models: int) -> Coverage:
    """The coverage over all models: of each its limits, the probabilities [n, C] and the labels [n] of test images.

    `models` is how many of them answer for one image. Another model adds no image, so the counts are means.
    """
    images, accepted, covered, asked = 0, 0, 0, 0.0
    for limits, probabilities, labels in parts:
        if limits.reason:
            return Coverage(limits.coverage, NO_SHARE, NO_SHARE, limits.reason)
        own, highest = probabilities[np.arange(len(labels)), labels].tolist(), probabilities.max(1).tolist()
        images, asked = images + len(labels), limits.coverage
        accepted += sum(acceptance.reaches(probability, limits.highest) for probability in highest)
        covered += sum(acceptance.reaches(probability, limits.member) for probability in own)
    distinct = images // models
    return Coverage(asked, share(accepted / models, distinct), share(covered / models, distinct))


def reliance(answers: Sequence[Answer], limits: Limits) -> Reliance:
    """What the limits make of the answers for test images."""
    if limits.reason:
        return Reliance(limits, (0.0, 0.0), NO_SHARE, NO_SHARE, 0, ())
    accepted = [answer for answer in answers if acceptance.reaches(answer.probabilities[1], limits.highest)]
    refused = [answer for answer in answers if not acceptance.reaches(answer.probabilities[1], limits.highest)]
    covered = sum(acceptance.reaches(answer.probabilities[0], limits.member) for answer in answers)
    return Reliance(
        limits,
        metrics.coverage_interval(limits.images, acceptance.rank(limits.images, limits.coverage)),
        share(len(accepted), len(answers)),
        share(covered, len(answers)),
        sum(not acceptance.reaches(answer.probabilities[2], limits.member) for answer in accepted),
        sorted(refused, key=lambda answer: -answer.probabilities[1])[:MOST_REFUSED],
    )
