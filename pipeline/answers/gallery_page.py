"""The page of `predict --html`: every image with its answer; how many are right, where folders are named like classes.

Like classify.py, it imports no library at its top.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.params import Params

if TYPE_CHECKING:
    from pipeline.evaluation.metrics import Share

MOST = 500  # images of each kind on the page


@dataclass(frozen=True)
class Guess:
    """An answer of classify.py, as the page and the last line have it."""

    path: str  # as it was typed
    file: str  # from the current folder
    prediction: str  # the most likely class
    probability: float
    is_accepted: bool  # it is not none of the classes
    label: str  # the class that the image's folder is named like; empty if it is none
    heatmap: str = ""  # the file of its heat map

    @property
    def is_right(self) -> bool:
        """Whether the image gets the class of its folder."""
        return self.is_accepted and self.prediction == self.label


def guess(answer: Mapping[str, Any], typed: str) -> Guess:
    """An answer with the name of its image as it was typed."""
    folder, best = Path(answer["path"]).absolute().parent.name, answer["class"]
    label = folder if folder in answer["probabilities"] else ""
    is_accepted = answer["answer"] != "none"
    chance = answer["probabilities"][best]
    return Guess(typed, answer["path"], best, chance, is_accepted, label, answer.get("heatmap", ""))


def share_right(guesses: Sequence[Guess]) -> "Share | None":
    """The share of right answers, of the images in folders that are named like a class; None if there are none."""
    from pipeline.evaluation import metrics

    known = [one for one in guesses if one.label]
    return metrics.share(sum(one.is_right for one in known), len(known)) if known else None


def page(guesses: Sequence[Guess], config: Params) -> str:
    """The page as HTML. Raises UserError if an image is gone."""
    from pipeline.reporting import rendering, thumbnails
    from pipeline.reporting.gallery import Album, HeatMaps
    from pipeline.sources.originals import Originals

    kinds = [(title, part[:MOST], len(part)) for title, part in _kinds(guesses).items() if part]
    shown = [one for _, part, _ in kinds for one in part]
    paths = {one.file: False for one in shown}
    pictures = thumbnails.pictures(
        Originals(Path(), {}), paths, config.prepare.grey, config.run.decoding_threads, "page"
    )
    maps = {one.path: thumbnails.of_picture(Path(one.heatmap)) for one in shown if one.heatmap}
    return rendering.page(
        "predict.html.jinja",
        images=len(guesses),
        right=share_right(guesses),
        classes=_classes(guesses),
        kinds=kinds,
        album=Album({one.path: pictures[one.file] for one in shown}, {}, HeatMaps(maps)),
    )


def _kinds(guesses: Sequence[Guess]) -> dict[str, list[Guess]]:
    """Title → images: the most confident mistakes first; of the others the least sure ones first."""
    unsure = sorted(guesses, key=lambda one: one.probability)
    return {
        "Another class than the folder's": [one for one in reversed(unsure) if one.label and not one.is_right],
        "None of the classes": [one for one in unsure if not (one.label or one.is_accepted)],
        "Answers": [one for one in unsure if one.is_accepted and not one.label],
        "The class of the folder": [one for one in unsure if one.is_right],
    }


def _classes(guesses: Sequence[Guess]) -> list[tuple[str, int, int, int]]:
    """Of each class the images that get the class, those in its folder, and those of them that are right."""
    given = Counter(one.prediction for one in guesses if one.is_accepted)
    folders, right = (
        Counter(one.label for one in part) for part in (guesses, [one for one in guesses if one.is_right])
    )
    return [(name, given[name], folders[name], right[name]) for name in sorted({*given, *folders} - {""})]
