"""Whether an answer of a model can be relied on, or is "none of the classes"; models/acceptance.json.

Split conformal prediction [Vovk, Gammerman, Shafer 2005; Lei et al. 2018]: the validation images say how probable the
answers for images of known classes are. The score of an image is its highest probability. Of n images, sorted by their
score, the one with the rank ⌊(n + 1)(1 - coverage)⌋ gives the limit: if a new image comes from the same source, its
score reaches the limit with at least this coverage. An image below the limit is none of the classes.

This module imports no library at its top, so that `predict` answers at once.
"""

from collections.abc import Sequence
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

Kind = Literal["class", "none", ""]


@dataclass(frozen=True)
class Acceptance:
    """The scores of the validation images, in ascending order."""

    __pydantic_config__ = schema.OPEN  # a file of an older version has one key more, and gives the same limit

    weights: schema.Sha256  # of the model.safetensors that gave the scores; in MISSING it is empty
    classes: schema.Count
    coverage: float  # evaluate.coverage
    highest: tuple[schema.Share, ...]  # the highest probability of each image

    def __post_init__(self) -> None:
        """Raise ValueError for scores that `make` cannot have made."""
        if not 0.5 <= self.coverage < 1:
            raise ValueError(f"coverage: {self.coverage}")
        if list(self.highest) != sorted(self.highest):
            raise ValueError("scores that do not ascend")


MISSING = Acceptance("", 1, 0.95, ())


@dataclass(frozen=True)
class Limit:
    """What an image has to reach. Without a limit there is a reason, and `highest` is 0."""

    coverage: float
    images: int = 0  # validation images that the limit comes from
    highest: float = 0.0  # for the highest probability of an image: else it is none of the classes
    reason: str = ""


def rounded(probability: float) -> float:
    """The probability with DIGITS significant digits, as a limit has it."""
    return float(f"{probability:.{DIGITS}g}")


def reaches(probability: float, limit: float) -> bool:
    """Whether a probability is not below a limit."""
    return rounded(probability) >= limit


def make(weights: str, coverage: float, highest: Sequence[float], classes: int) -> Acceptance:
    """The content of the file, from the highest probabilities of the validation images in any order."""
    return Acceptance(weights, classes, coverage, tuple(sorted(map(rounded, highest))))


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


def limit(content: Acceptance, weights: str, coverage: float = 0) -> Limit:
    """The limit for a coverage (0: that of the file), or the reason why there is none.

    `weights`: SHA-256 of the model.
    """
    images, wanted = len(content.highest), coverage or content.coverage
    reason = shortage(images, content.classes, wanted)
    if not content.weights:
        reason = f"{FILE} is missing (an older version made the model, or evaluate has not run); perennial repro"
    elif content.weights != weights:
        reason = f"{FILE} is of other weights; to have its own: perennial repro"
    if reason:
        return Limit(wanted, reason=reason)
    place = rank(images, wanted) - 1
    return Limit(wanted, images, content.highest[place])


def limit_of(models: Path, coverage: float = 0) -> Limit:
    """The limit of the model in a folder, as `limit` gives it. Raises UserError for a damaged file."""
    content = read(models)
    weights = files.sha256(models / "model.safetensors") if content.weights else ""
    return limit(content, weights, coverage)


def judge(highest: float, limit: Limit) -> Kind:
    """What the limit says of an image with this highest probability; empty without a limit."""
    if limit.reason:
        return ""
    return "class" if reaches(highest, limit.highest) else "none"
