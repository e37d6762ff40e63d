"""Whether an answer of a model can be relied on: "none of the classes", and sets of classes; models/acceptance.json.

Split conformal prediction [Vovk, Gammerman, Shafer 2005; Lei et al. 2018]: the validation images say how probable the
answers for images of known classes are. Of n of them, sorted by a score, the one with the rank ⌊(n + 1)(1 - coverage)⌋
gives the limit: if a new image comes from the same source, its score reaches the limit with at least this coverage.
There are two limits. The first is on the highest probability: an image below it is none of the classes. The second is
on the probability of the image's own class: the set of an image has every class that reaches it. It is never above the
first one, so the set of an accepted image has a class.

This module imports no library at its top, so that `predict` answers at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Literal

from pipeline.base import files, schema

FILE = "acceptance.json"
MOST_IMAGES = 2000  # validation images in the file: 0.5 points of a coverage of 95 % [standard deviation]
MIN_IMAGES = 20  # validation images per class, on average, for a limit
DIGITS = 6  # significant ones of a score: more would differ between two programs that compute the same model

Kind = Literal["class", "set", "none", ""]


@dataclass(frozen=True)
class Acceptance:
    """The scores of the validation images, each list in ascending order."""

    __pydantic_config__ = schema.STRICT

    weights: schema.Sha256  # of the model.safetensors that gave the scores; in MISSING it is empty
    classes: schema.Count
    coverage: float  # evaluate.coverage
    highest: tuple[schema.Share, ...]  # the highest probability of each image
    own: tuple[schema.Share, ...]  # the probability of the class of each image

    def __post_init__(self) -> None:
        """Raise ValueError for scores that `make` cannot have made."""
        if not 0.5 <= self.coverage < 1:
            raise ValueError(f"coverage: {self.coverage}")
        if len(self.highest) != len(self.own):
            raise ValueError(f"{len(self.highest)} and {len(self.own)} scores")
        if any(list(scores) != sorted(scores) for scores in (self.highest, self.own)):
            raise ValueError("scores that do not ascend")


MISSING = Acceptance("", 1, 0.95, (), ())


@dataclass(frozen=True)
class Limits:
    """What an image has to reach. Without limits there is a reason, and both are 0."""

    coverage: float
    images: int = 0  # validation images that the limits come from
    highest: float = 0.0  # for the highest probability of an image: else it is none of the classes
    member: float = 0.0  # for the probability of a class: else it is not in the set
    reason: str = ""


@dataclass(frozen=True)
class Judgement:
    """What the limits say of an image."""

    kind: Kind  # empty without limits
    classes: tuple[str, ...]  # the set, the most likely one first; also for an image that is none of the classes


def rounded(probability: float) -> float:
    """The probability with DIGITS significant digits, as limits have it."""
    return float(f"{probability:.{DIGITS}g}")


def reaches(probability: float, limit: float) -> bool:
    """Whether a probability is not below a limit."""
    return rounded(probability) >= limit


def make(weights: str, coverage: float, highest: Sequence[float], own: Sequence[float], classes: int) -> Acceptance:
    """The content of the file, from the probabilities of the validation images in any order."""
    scores = (tuple(sorted(map(rounded, column))) for column in (highest, own))
    return Acceptance(weights, classes, coverage, *scores)


def write(models: Path, content: Acceptance) -> None:
    """Write the file into the folder of a model."""
    files.write_json(models / FILE, asdict(content))


def read(models: Path) -> Acceptance:
    """The content of the file in the folder of a model; MISSING without the file. Raises UserError if it is damaged."""
    path = models / FILE
    return schema.json_of(path, Acceptance, schema.checkout(path)) if path.is_file() else MISSING


def rank(images: int, coverage: float) -> int:
    """The rank of the limit among so many images, from 1; 0 if they are too few for this coverage."""
    return floor((images + 1) * (1 - Fraction(str(coverage))))


def shortage(images: int, classes: int, coverage: float) -> str:
    """Why so many validation images give no limit; empty if they do."""
    if images < (needed := min(MIN_IMAGES * classes, MOST_IMAGES)):
        count = f"{images:,} validation images are too few for {classes:,} classes"
        return f"{count}, {needed:,} are needed; add images, or raise split.fractions.val"
    if not rank(images, coverage):
        return f"the coverage is {coverage}; allowed with {images:,} validation images: {images / (images + 1):.4f}"
    return ""


def limits(content: Acceptance, weights: str, coverage: float = 0) -> Limits:
    """The limits for a coverage (0: that of the file), or the reason why there are none.

    `weights`: SHA-256 of the model.
    """
    images, wanted = len(content.highest), coverage or content.coverage
    reason = shortage(images, content.classes, wanted)
    if not content.weights:
        reason = f"{FILE} is missing (an older version made the model, or evaluate has not run); perennial repro"
    elif content.weights != weights:
        reason = f"{FILE} is of other weights; to have its own: perennial repro"
    if reason:
        return Limits(wanted, reason=reason)
    place = rank(images, wanted) - 1
    return Limits(wanted, images, content.highest[place], content.own[place])


def limits_of(models: Path, coverage: float = 0) -> Limits:
    """The limits of the model in a folder, as `limits` gives them. Raises UserError for a damaged file."""
    content = read(models)
    weights = files.sha256(models / "model.safetensors") if content.weights else ""
    return limits(content, weights, coverage)


def judge(probabilities: Mapping[str, float], limit: Limits) -> Judgement:
    """What the limits say of an image, from the probability of each class."""
    if limit.reason:
        return Judgement("", ())
    order = sorted(probabilities.items(), key=lambda item: -item[1])
    members = tuple(name for name, probability in order if reaches(probability, limit.member))
    if not reaches(order[0][1], limit.highest):
        return Judgement("none", members)
    return Judgement("set" if len(members) > 1 else "class", members)
