"""Which answers a run accepts, and what its limits promise (models/acceptance.py): counted on the test images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.evaluation import metrics
from pipeline.models import acceptance
from pipeline.models.acceptance import DIGITS, Limits
from pipeline.reporting.outcome import Answer

MOST_REFUSED = 12  # test images on a page


@dataclass(frozen=True)
class Share:
    """A number of test images, and the 95 % interval of its share."""

    count: int
    low: float
    high: float


@dataclass(frozen=True)
class Reliance:
    """What the limits make of the test images. Without limits (`limits.reason`) all numbers are 0."""

    limits: Limits
    promise: tuple[float, float]  # 95 % interval of the coverage, as so few validation images give it
    accepted: Share  # images that get a class or a set
    covered: Share  # images whose class is in the set of classes that reach `limits.member`
    single: int  # accepted images that get one class
    refused: Sequence[Answer]  # the most probable first, at most MOST_REFUSED


@dataclass(frozen=True)
class Coverage:
    """What the limits of several models make of their test images; without limits (`reason`) all numbers are 0."""

    asked: float  # evaluate.coverage
    images: int
    accepted: Share
    covered: Share
    reason: str = ""


NO_SHARE = Share(0, 0.0, 0.0)
NO_COVERAGE = Coverage(0.0, 0, NO_SHARE, NO_SHARE, "no limit is known")


def coverage(parts: Iterable[tuple[Limits, NDArray[np.float64], NDArray[np.int64]]]) -> Coverage:
    """The coverage over all models: of each its limits, the probabilities [n, C] and the labels [n] of test images."""
    images = accepted = covered = 0
    asked = 0.0
    for limits, probabilities, labels in parts:
        if limits.reason:
            return Coverage(limits.coverage, 0, NO_SHARE, NO_SHARE, limits.reason)
        own = probabilities[np.arange(len(labels)), labels]
        images, asked = images + len(labels), limits.coverage
        accepted += int((probabilities.max(1).round(DIGITS) >= limits.highest).sum())
        covered += int((own.round(DIGITS) >= limits.member).sum())
    return Coverage(asked, images, share(accepted, images), share(covered, images))


def share(count: int, total: int) -> Share:
    """The share of `count` in `total`, one or more."""
    return Share(count, *metrics.wilson(count, total))


def reliance(answers: Sequence[Answer], limits: Limits) -> Reliance:
    """What the limits make of the answers for test images."""
    if limits.reason:
        return Reliance(limits, (0.0, 0.0), NO_SHARE, NO_SHARE, 0, ())

    def reaches(probability: float, limit: float) -> bool:
        return round(probability, DIGITS) >= limit

    refused = [answer for answer in answers if not reaches(answer.probabilities[1], limits.highest)]
    single = sum(
        reaches(answer.probabilities[1], limits.highest) and not reaches(answer.probabilities[2], limits.member)
        for answer in answers
    )
    covered = sum(reaches(answer.probabilities[0], limits.member) for answer in answers)
    return Reliance(
        limits,
        metrics.coverage_interval(limits.images, acceptance.rank(limits.images, limits.coverage)),
        share(len(answers) - len(refused), len(answers)),
        share(covered, len(answers)),
        single,
        sorted(refused, key=lambda answer: -answer.probabilities[1])[:MOST_REFUSED],
    )
