"""Which answers a run accepts, and what its limits promise (models/acceptance.py): counted on the test images."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.evaluation import metrics
from pipeline.evaluation.metrics import Share, share
from pipeline.models import acceptance
from pipeline.models.acceptance import Limits
from pipeline.reporting.outcome import Answer

MOST_REFUSED = 12  # test images on a page


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


NO_SHARE = Share(0, 0, 0.0, 0.0)


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
