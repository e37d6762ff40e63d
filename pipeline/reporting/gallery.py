"""Images on a page: which ones it has, and the words, thumbnail and credit of each."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.data import credits
from pipeline.dataset.split_table import ImageRow
from pipeline.reporting.outcome import Answer
from pipeline.reporting.thumbnails import NO_PICTURE, Thumbnail

MOST_ANSWERS = 24  # mistakes, and as many right answers
MOST_CHOICES = 30  # classes to choose from for an image; of more, only the given and the suggested one
MEASURES = {  # issue → the meaning of its number
    "dark": "The brightness, from 0 to 1, that 99 % of the pixels do not exceed",
    "bright": "The brightness, from 0 to 1, that 95 % of the pixels exceed",
    "blurred": "How strong the edges are; a photo with a soft background has few, too",
    "low_information": "Bits of information per value of a pixel",
    "grey": "The difference between the colour channels, of 255, that 99 % of the pixels do not exceed",
    "odd_aspect": "The short side divided by the long side",
    "odd_size": "The side in pixels of a square of the same area; usual: that of nine in ten images",
    "missing_part": "The share of the rows or columns that are plain mid-grey, as the missing part of a JPEG is shown",
}


@dataclass(frozen=True)
class Shot:
    """An image on a page."""

    path: str
    picture: Thumbnail
    credit: str  # without its address; empty if there is none
    address: str  # of the web; empty if there is none

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class HeatMaps:
    """The heat maps of images by path, or the reason why this model has none."""

    pictures: Mapping[str, Thumbnail]
    reason: str = ""


NO_HEAT_MAPS = HeatMaps({})


@dataclass(frozen=True)
class Album:
    """Thumbnails and credits of the images on a page, by path.

    Of mistakes: heat maps, frames (heat_maps.frame), and the training photos beside them (nearest.photos).
    """

    pictures: Mapping[str, Thumbnail]
    credits: Mapping[str, str]
    heat_maps: HeatMaps = NO_HEAT_MAPS
    frames: Mapping[str, str] = field(default_factory=dict)
    nearest: Mapping[str, Sequence[ImageRow]] = field(default_factory=dict)

    def shot(self, path: str) -> Shot:
        """The image with this path."""
        credit = self.credits.get(path, "")
        picture = self.pictures.get(path, NO_PICTURE)
        return Shot(path, picture, credits.without_address(credit), credits.address(credit))


@dataclass(frozen=True)
class HardAnswers:
    """The answers on a page, the hardest first, and the number of all mistakes and of all right answers."""

    mistakes: Sequence[Answer]
    mistake_count: int
    right_answers: Sequence[Answer]
    right_count: int

    @property
    def cell_images(self) -> dict[tuple[int, int], str]:
        """Cell of the confusion matrix (label, prediction) → the path of its first image, if it has one here."""
        answers = (*self.mistakes, *self.right_answers)
        return {(answer.label, answer.prediction): answer.path for answer in reversed(answers)}


def hard_answers(answers: Sequence[Answer]) -> HardAnswers:
    """The most confident mistakes and the least confident right answers; ties in the order of answers."""
    mistakes = sorted((answer for answer in answers if not answer.is_right), key=lambda one: -one.probabilities[1])
    right = sorted((answer for answer in answers if answer.is_right), key=lambda one: one.probabilities[1])
    return HardAnswers(mistakes[:MOST_ANSWERS], len(mistakes), right[:MOST_ANSWERS], len(right))


def choices(classes: Sequence[str]) -> str:
    """The classes that a person can choose from for an image, as JSON for the script of a page."""
    return json.dumps(classes if len(classes) <= MOST_CHOICES else ())
