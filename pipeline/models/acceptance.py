"""Whether an answer of a model can be relied on: "none of the classes", and sets of classes; models/acceptance.json.

Split conformal prediction [Vovk, Gammerman, Shafer 2005; Lei et al. 2018]: the validation images say how probable the
answers for images of known classes are. Of n of them, sorted by a score, the one with the rank ⌊(n + 1)(1 - coverage)⌋
gives the limit: if a new image comes from the same source, its score reaches the limit with at least this coverage.
There are two limits. The first is on the highest probability: an image below it is none of the classes. The second is
on the probability of the image's own class: the set has every class that reaches it. It is never above the first one,
so the set of an accepted image has a class.

This module imports no library at its top, so that `predict` answers at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Literal

from pipeline.base import files, schema
from pipeline.base.errors import Fault, UserError

FILE = "acceptance.json"
MOST_IMAGES = 2000  # validation images in the file: 0.5 points of a coverage of 95 % [standard deviation]
MIN_IMAGES = 20  # validation images per class, on average, for a limit
DIGITS = 6  # of a score: more would differ between two programs that compute the same model

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


MISSING = Acceptance("", 1, 0.95, (), ())  # an older version made the model


@dataclass(frozen=True)
class Limits:
    """What an image has to reach. Probabilities are compared with DIGITS digits."""

    coverage: float
    images: int  # validation images that the limits come from; 0: there are no limits
    highest: float  # the highest probability of an image of a known class
    member: float  # the probability of a class in the set
    reason: str = ""  # why there are no limits


@dataclass(frozen=True)
class Judgement:
    """What the limits say of an image."""

    kind: Kind  # empty without limits
    classes: tuple[str, ...]  # the most likely one first; none if the image is none of the classes


def make(weights: str, coverage: float, highest: Sequence[float], own: Sequence[float], classes: int) -> Acceptance:
    """The content of the file, from the probabilities of the validation images in any order."""
    scores = (tuple(sorted(round(score, DIGITS) for score in column)) for column in (highest, own))
    return Acceptance(weights, classes, coverage, *scores)


def write(models: Path, content: Acceptance) -> None:
    """Write the file into the folder of a model."""
    files.write_json(models / FILE, asdict(content))


def read(models: Path) -> Acceptance:
    """The content of the file in the folder of a model; MISSING if an older version made the model.

    Raises UserError if it is damaged.
    """
    path = models / FILE
    return schema.json_of(path, Acceptance, schema.checkout(path)) if path.is_file() else MISSING


def rank(images: int, coverage: float) -> int:
    """The rank of the limit among so many images, from 1; 0 if they are too few for this coverage."""
    return floor((images + 1) * (1 - Fraction(str(coverage))))


def limits(content: Acceptance, weights: str, coverage: float = 0) -> Limits:
    """The limits for a coverage (0: that of the file), or the reason why there are none.

    `weights`: SHA-256 of the model. Raises UserError for a `coverage` that needs more validation images.
    """
    images, wanted = len(content.highest), coverage or content.coverage
    needed, place = MIN_IMAGES * content.classes, rank(images, wanted)
    most = f"at most {images / (images + 1):.4f} with {images:,} validation images"
    reasons = (
        (not content.weights, "an older version made the model; to have a limit: perennial repro"),
        (content.weights != weights, f"{FILE} is of other weights; to have its own: perennial repro"),
        (images < needed,
         f"{images:,} validation images are too few for {content.classes:,} classes, {needed:,} are needed; "
         "add images, or raise split.fractions.val"),
        (not place and not coverage, f"evaluate.coverage is {wanted}; allowed: {most}"),
    )  # fmt: skip
    for applies, reason in reasons:
        if applies:
            return Limits(wanted, 0, 0.0, 0.0, reason)
    if not place:
        raise UserError(Fault("--coverage", str(coverage), "value", allowed=most))
    return Limits(wanted, images, content.highest[place - 1], content.own[place - 1])


def limits_of(models: Path, coverage: float = 0) -> Limits:
    """The limits of the model in a folder, as `limits` gives them. Raises UserError as it does."""
    content = read(models)
    weights = files.sha256(models / "model.safetensors") if content.weights else ""
    return limits(content, weights, coverage)


def judge(probabilities: Mapping[str, float], limit: Limits) -> Judgement:
    """What the limits say of an image, from the probability of each class."""
    if not limit.images:
        return Judgement("", ())
    order = sorted(probabilities.items(), key=lambda item: -item[1])
    if round(order[0][1], DIGITS) < limit.highest:
        return Judgement("none", ())
    members = tuple(name for name, probability in order if round(probability, DIGITS) >= limit.member)
    return Judgement("class" if len(members) == 1 else "set", members)
