"""The answer of a model for an image: what is printed, counted and shown on a page; and paths as a person typed them.

Like classify.py, it imports no library at its top.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.errors import Fault, UserError
from pipeline.evaluation.acceptance import Kind


@dataclass(frozen=True)
class Answer:
    """The answer for one image."""

    path: str  # as a person typed it
    file: str  # from the folder in which the program works
    prediction: str  # the most likely class
    kind: Kind  # what the limit says
    probabilities: Mapping[str, float]  # of all classes, in their order
    label: str  # its class in split.csv, or the class that its folder is named like; else empty
    heatmap: str = ""  # the file of its heat map, as `path`

    @property
    def probability(self) -> float:
        return self.probabilities[self.prediction]

    @property
    def is_accepted(self) -> bool:
        """Whether it is a class, and not none of the classes."""
        return self.kind != "none"

    @property
    def is_right(self) -> bool:
        return self.is_accepted and self.prediction == self.label

    def most_likely(self, number: int) -> dict[str, float]:
        """The most likely classes with their probabilities, the first one first."""
        return dict(sorted(self.probabilities.items(), key=lambda item: -item[1])[:number])


def as_typed(path: str | Path, below: str) -> str:
    """A path as the person in the folder `below` has typed it: what `command_line.parse` has added is gone."""
    return str(Path(path).relative_to(below) if Path(path).is_relative_to(below) else path)


def check_page(option: str, path: Path, below: str) -> None:
    """Raise UserError if this path, of this option, is not that of a page."""
    if path.suffix != ".html" or path.is_dir():
        raise UserError(Fault(option, as_typed(path, below), "value", allowed="a file whose name ends with .html"))
