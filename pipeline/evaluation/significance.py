"""Whether one model is better than another on the same images: McNemar's exact test."""

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import binomtest

LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """Two models on the same images."""

    images: int
    first_alone: int  # images that only the first model has right
    second_alone: int
    p: float

    @property
    def points(self) -> float:
        """How much higher the accuracy of the second model is, in percentage points."""
        return 100 * (self.second_alone - self.first_alone) / self.images

    @property
    def shown(self) -> bool:
        """Whether the difference is larger than chance explains, at the level of 5 %."""
        return self.p < LEVEL


def compare(first: Sequence[bool], second: Sequence[bool]) -> Comparison:
    """McNemar's exact test of which images, one or more, each of two models has right [McNemar 1947].

    If the models are equally good, each image that only one has right is of the one or the other like a coin.
    """
    first_alone = sum(a and not b for a, b in zip(first, second, strict=True))
    second_alone = sum(b and not a for a, b in zip(first, second, strict=True))
    discordant = first_alone + second_alone
    p = float(binomtest(first_alone, discordant).pvalue) if discordant else 1.0
    return Comparison(len(first), first_alone, second_alone, p)
