"""What the studies read of a result, and of the source of all results: a work copy with the images."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from pipeline.config.params import Params, Paths
from pipeline.data import credits
from pipeline.dataset import split_table
from pipeline.dataset.split_table import ImageRow
from pipeline.evaluation import figures
from pipeline.reporting import thumbnails
from pipeline.reporting.gallery import Album
from pipeline.sources import originals
from pipeline.sources.originals import Originals
from pipeline.studies import record
from pipeline.studies.record import Origin
from pipeline.studies.store import Result, Study
from pipeline.studies.workcopy import WorkCopy

MOST_FOLDS = 100
PREDICTIONS = f"{Paths.metrics}/{figures.PREDICTIONS}"


def rows(result: Result) -> list[ImageRow]:
    """The rows of split.csv of the images that are used."""
    return split_table.kept_rows(result.folder / Paths.split)


def images(source: WorkCopy) -> Originals:
    """The image files."""
    return originals.locate(source.folder / Paths.images, source.folder / source.config.paths.inbox)


def album(source: WorkCopy, paths: Iterable[str], name: str = "folds", needed: bool = True) -> Album:
    """The thumbnails of these images, and who took them. An image that is not `needed` may be gone, or damaged."""
    config, found = source.config, images(source)
    wanted = {path: needed for path in paths if needed or (found.root / path).is_file()}
    pictures = thumbnails.pictures(found, wanted, config.prepare.grey, config.run.decoding_threads, name)
    return Album(pictures, credits.credits(source.folder / Paths.images / originals.LICENSE))


def origin(runs: Study) -> Origin:
    """What a study was made of and by."""
    return Origin(record.digest(images(runs.source), runs.source.config.run.decoding_threads), runs.commit)


def conditions(config: Params, runs: Study) -> dict[str, Any]:
    """The params of a study and its origin, as its files have them."""
    return {"params": record.decisive(config), "origin": asdict(origin(runs))}
