"""What the studies share: trainings in work copies of the project, and what a study reads in a copy.

A study is a start of the pipeline with other params in each copy (folds, shares of the training images, classes that
are left out). If it is killed, the same command goes on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.data import credits
from pipeline.dataset import split_table
from pipeline.evaluation import figures
from pipeline.reporting import thumbnails
from pipeline.reporting.gallery import Album
from pipeline.sources import originals
from pipeline.sources.originals import Originals
from pipeline.studies import record, runner, workcopy
from pipeline.studies.record import Origin
from pipeline.studies.runner import Job, Slot
from pipeline.studies.workcopy import WorkCopy

MOST_FOLDS = 100


@dataclass(frozen=True)
class Runs:
    """The runs of a study."""

    command: str  # begins the messages
    folder: Path  # of the work copies
    slots: Sequence[Slot]  # one for each run at a time

    def copy(self, name: str, values: Mapping[str, Any]) -> WorkCopy:
        """A work copy of the project with other params (dotted key → value)."""
        return workcopy.copy_project(self.folder / name, values)

    def bring_images(self, copies: Iterable[WorkCopy]) -> None:
        """Bring the images and the weights into the first copy, and link them into the others."""
        first, *others = copies
        job = Job("images and weights", first.folder, ("download", "weights"))
        runner.run_or_raise([job], [runner.here()], self.command)
        workcopy.share((first.config.paths.images, first.config.paths.weights), [first, *others])

    def split(self, copies: Mapping[str, WorkCopy]) -> None:
        """Split the images of each copy. The key is the name of the run. What a study needs can then be checked."""
        splits = [Job(f"{name}: split", copy.folder, ("split",)) for name, copy in copies.items()]
        runner.run_or_raise(splits, self.slots, self.command)

    def train(self, copies: Mapping[str, WorkCopy]) -> None:
        """Train and test in each copy. Raises UserError if a run fails, or if DVC's cache was damaged meanwhile."""
        stages = ("split", "prepare", "features", "train", "evaluate")
        runner.run_or_raise([Job(name, copy.folder, stages) for name, copy in copies.items()], self.slots, self.command)
        workcopy.check_cache(self.command)


def rows(copy: WorkCopy) -> list[dict[str, str]]:
    """The rows of split.csv of the images that are used."""
    return split_table.kept_rows(copy.folder / copy.config.paths.split)


def predictions(copy: WorkCopy) -> Path:
    """The path of the table of predictions."""
    return copy.folder / copy.config.paths.metrics / figures.PREDICTIONS


def models(copy: WorkCopy) -> Path:
    """The folder of the model."""
    return copy.folder / copy.config.paths.models


def images(copy: WorkCopy) -> Originals:
    """The image files."""
    return originals.locate(copy.folder / copy.config.paths.images, copy.folder / copy.config.paths.inbox)


def album(copy: WorkCopy, paths: Iterable[str]) -> Album:
    """The thumbnails of these images, and who took them."""
    config = copy.config
    pictures = thumbnails.pictures(
        images(copy), dict.fromkeys(paths, True), config.prepare.grey, config.run.decoding_threads, "folds"
    )
    return Album(pictures, credits.credits(copy.folder / config.paths.images / originals.LICENSE))


def origin(copy: WorkCopy, commit: str) -> Origin:
    """What a study was made of and by. `commit`: that of the work copies' code, see record.commit."""
    return Origin(record.digest(images(copy), copy.config.run.decoding_threads), commit)


def conditions(config: Params, origin: Origin) -> dict[str, Any]:
    """The params and the origin of a study, as its files have them."""
    return {"params": record.decisive(config), "origin": asdict(origin)}
