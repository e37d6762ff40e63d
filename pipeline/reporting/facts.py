"""The facts about a run that its page and its model card have, from the files of the stages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.data import credits
from pipeline.data.suspects import Suspect
from pipeline.evaluation import acceptance
from pipeline.models import description
from pipeline.models.description import Description
from pipeline.reporting import audit, outcome, reliance, settings
from pipeline.reporting.audit import Audit, Rows
from pipeline.reporting.outcome import Outcome
from pipeline.reporting.reliance import Reliance
from pipeline.reporting.settings import Setting
from pipeline.sources import originals


@dataclass(frozen=True)
class Facts:
    """The facts about a finished run."""

    config: Params
    model: Description
    outcome: Outcome
    reliance: Reliance
    audit: Audit
    credits: Mapping[str, str]  # path of an image → its licence and photographer
    settings: Sequence[Setting]
    packages: Sequence[tuple[str, str]]  # name and version
    hashes: Sequence[tuple[str, str]]  # name of a file, and its MD5

    @property
    def weights(self) -> str:
        """The MD5 of the exported weights, by which Git finds the commit."""
        return dict(self.hashes)[settings.MODEL]


def read(config: Params, tracked: Mapping[str, Any], rows: Rows, suspects: Sequence[Suspect] = ()) -> Facts:
    """The facts about the run of `config`. `tracked`: as for `settings.settings`; `rows`: of split.csv.

    Raises UserError for a missing or damaged file.
    """
    paths = config.paths
    models = Path(paths.models)
    model = description.load(models)
    results = outcome.read(Path(paths.metrics), model.classes, model.epoch)
    return Facts(
        config=config,
        model=model,
        outcome=results,
        reliance=reliance.reliance(results.answers, acceptance.limit_of(models)),
        audit=audit.summarize_split(rows, suspects),
        credits=credits.credits(Path(paths.images) / originals.LICENSE),
        settings=settings.settings(config, tracked),
        packages=settings.packages(),
        hashes=settings.hashes(config),
    )
