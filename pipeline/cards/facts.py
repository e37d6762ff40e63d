"""What the model card says, as values."""

from dataclasses import dataclass
from typing import Any

from pipeline.config.params import Params
from pipeline.models.description import Description
from pipeline.reporting.audit import Audit
from pipeline.reporting.outcome import Outcome


@dataclass(frozen=True)
class Facts:
    """Everything that the card says."""

    config: Params
    model: Description
    outcome: Outcome
    audit: Audit
    credits: dict[str, str]  # path of an image → its licence and photographer
    used: tuple[str, ...]  # the paths of the images in the split
    groups_apart: int  # groups of the audit that are in more than one part, which only a given split can have
    export: dict[str, Any]  # export.json
    hashes: dict[str, str]  # name of a file in paths.models → SHA-256

    @property
    def test_images(self) -> int:
        return len(self.outcome.answers)

    @property
    def right(self) -> int:
        """The test images that get the right class."""
        return sum(answer.is_right for answer in self.outcome.answers)
