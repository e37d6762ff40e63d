"""Images on a page: which are shown, and what is said of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.data import credits as of_photos
from pipeline.reporting.outcome import Answer
from pipeline.reporting.thumbnails import NO_PICTURE, Thumbnail

MOST_ANSWERS = 24  # mistakes, and as many right answers
MEASURES = {  # issue → what its number is
    "dark": "The brightness, from 0 to 1, that 99 % of the pixels do not exceed",
    "bright": "The brightness, from 0 to 1, that 95 % of the pixels exceed",
    "blurred": "How strong the edges are; a photo with a soft background has few, too",
    "low_information": "Bits of information per value of a pixel",
    "grey": "The difference between the colour channels, of 255, that 99 % of the pixels do not exceed",
    "odd_aspect": "The short side divided by the long side",
    "odd_size": "The side in pixels of a square of the same area; most images of this set have another one",
}


@dataclass(frozen=True)
class Shot:
    """An image as a page shows it."""

    path: str
    picture: Thumbnail
    credit: str  # without its address; empty if there is none
    address: str  # of the web; empty if there is none

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Album:
    """The thumbnails of the page and the credits of the photos, by the path of the image."""

    pictures: Mapping[str, Thumbnail]
    credits: Mapping[str, str]

    def shot(self, path: str) -> Shot:
        """The image with this path."""
        credit = self.credits.get(path, "")
        picture = self.pictures.get(path, NO_PICTURE)
        return Shot(path, picture, of_photos.without_address(credit), of_photos.address(credit))


@dataclass(frozen=True)
class Chosen:
    """The answers that are shown, and how many there are."""

    mistakes: Sequence[Answer]
    mistakes_in_all: int
    unsure: Sequence[Answer]
    right_in_all: int

    @property
    def first_of(self) -> dict[tuple[int, int], str]:
        """For each cell of the confusion matrix that these are in: the path of its first image."""
        return {(one.actual, one.predicted): one.path for one in reversed((*self.mistakes, *self.unsure))}


def choose(answers: Sequence[Answer]) -> Chosen:
    """The most confident mistakes and the least confident right answers; ties in the order of answers."""
    mistakes = sorted((one for one in answers if not one.is_right), key=lambda one: -one.probabilities[1])
    unsure = sorted((one for one in answers if one.is_right), key=lambda one: one.probabilities[1])
    return Chosen(mistakes[:MOST_ANSWERS], len(mistakes), unsure[:MOST_ANSWERS], len(unsure))
