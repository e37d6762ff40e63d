"""Which answers a run accepts, and what its limit promises (evaluation/acceptance.py): counted on the test images."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.evaluation import acceptance, metrics
from pipeline.evaluation.acceptance import Limit
from pipeline.evaluation.metrics import Share, share
from pipeline.reporting.outcome import Answer

MOST_REFUSED = 12  # test images on a page


@dataclass(frozen=True)
class Reliance:
    """What the limit makes of the test images. Without a limit (`limit.reason`) all numbers are 0."""

    limit: Limit
    promise: tuple[float, float]  # 95 % interval of the coverage, as so few validation images give it
    accepted: Share  # images that get a class
    refused: Sequence[Answer]  # the most probable first, at most MOST_REFUSED


@dataclass(frozen=True)
class Coverage:
    """What the limits of several models make of their test images; without limits (`reason`) all numbers are 0."""

    asked: float  # evaluate.coverage
    accepted: Share
    reason: str = ""


NO_SHARE = Share(0, 0, 0.0, 0.0)


def reliance(answers: Sequence[Answer], limit: Limit) -> Reliance:
    """What the limit makes of the answers for test images."""
    if limit.reason:
        return Reliance(limit, (0.0, 0.0), NO_SHARE, ())
    refused = [answer for answer in answers if not acceptance.reaches(answer.probabilities[1], limit.highest)]
    return Reliance(
        limit,
        metrics.coverage_interval(limit.images, acceptance.rank(limit.images, limit.coverage)),
        share(len(answers) - len(refused), len(answers)),
        sorted(refused, key=lambda answer: -answer.probabilities[1])[:MOST_REFUSED],
    )
