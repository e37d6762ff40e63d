"""The README's table of results, made from the committed figures in results/.

A record that does not name its images and its commit is no row: it cannot be repeated.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.base import files, schema
from pipeline.config import params
from pipeline.data import split_report
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures
from pipeline.reruns import record
from pipeline.reruns.record import Origin
from tests.conftest import PROJECT, read_params
from tests.documents.phrases import Say

RECIPES = {  # name of the record → what was tested
    "mini": "flower_photos, one fifth, tested in 5 folds",
    "base": "flower_photos, all, tested in 5 folds",
}
DIGITS = 12  # of a commit and of the digest of the images


def row(
    title: str,
    images: int,
    train: Mapping[str, Any],
    tested: int,
    on_test: Mapping[str, float],
    source: tuple[str, Origin],
    say: Say,
) -> str:
    """A row: the data, the model and its settings, the accuracy on so many tested images, and the source."""
    settings = {key: train[key] for key in ("model", "crop", "epochs")}
    accuracy, low, high = (on_test[key] for key in ("accuracy", "accuracy_low", "accuracy_high"))
    command, origin = source
    parts = (
        say(title),
        f"{images:,}",
        say("{model}, {crop} pixels, {epochs} epochs", **settings),
        say(
            "{accuracy:.3f} ({low:.3f} to {high:.3f}, {images} images)",
            accuracy=accuracy, low=low, high=high, images=f"{tested:,}",
        ),
        say(
            "`{command}`, commit {commit}, images {images}",
            command=command, commit=origin.commit[:DIGITS], images=origin.images[:DIGITS],
        ),
    )  # fmt: skip
    return f"| {' | '.join(parts)} |"


def of_demo(project: Path, say: Say) -> list[str]:
    """The recorded demo as a row; none without its origin."""
    folder = project / record.DEMO
    if not (folder / record.ORIGIN).is_file():
        return []
    origin = schema.json_of(folder / record.ORIGIN, Origin, "")
    on_test = figures.by_name(figures.read(folder / "metrics", EvalFigures))
    images = figures.image_counts(files.read_csv(folder / "metrics" / split_report.IMAGES))
    train = read_params(folder / params.FILE)["train"]
    return [row("drawn flowers", sum(images.values()), train, images["test"], on_test, ("make demo", origin), say)]


def of_recipe(path: Path, title: str, say: Say) -> list[str]:
    """A study of all folds as a row: every image is tested. None without a record or its origin."""
    if not path.is_file() or not (study := record.read(path)).origin.images:
        return []
    train = {key.removeprefix("train."): value for key, value in study.params.items()}
    images = int(study.figures["images"])
    source = f"perennial folds --recipe {path.stem}", study.origin
    return [row(title, images, train, images, study.figures, source, say)]


def recipes() -> str:
    """The recorded recipes: images, epochs, and the accuracy over all images and of single folds."""
    lines = [
        "| recipe | photos | epochs | accuracy (95 % interval) | of one fold: mean ± deviation |",
        "|---|---|---|---|---|",
    ]
    for name in RECIPES:
        study = record.read(PROJECT / record.RECIPES / f"{name}.json")
        of = study.figures
        interval = f"{of['accuracy']:.4f} ({of['accuracy_low']:.4f} to {of['accuracy_high']:.4f})"
        one = f"{of['over_folds.mean']:.4f} ± {of['over_folds.deviation']:.4f}"
        lines.append(f"| `{name}` | {int(of['images']):,} | {study.params['train.epochs']} | {interval} | {one} |")
    return "\n".join(lines)


def table(say: Say, project: Path = PROJECT) -> str:
    """The README's table of results."""
    titles = ("data", "images", "trained from scratch", "test accuracy (95 % interval)", "made by")
    head = [f"| {' | '.join(map(say, titles))} |", "|---|---|---|---|---|"]
    studies = [of_recipe(project / record.RECIPES / f"{name}.json", title, say) for name, title in RECIPES.items()]
    return "\n".join([*head, *of_demo(project, say), *(line for lines in studies for line in lines)])
