"""The README's table of results, made from the committed figures in results/."""

from collections.abc import Mapping
from typing import Any

from pipeline.base import files
from pipeline.config import params
from pipeline.data import split_report
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures
from pipeline.studies import record
from tests.conftest import PROJECT, read_params
from tests.documents.phrases import Say

RECIPES = {  # name of the record → what was tested
    "quick-mini": "flower_photos, one fifth, tested in 5 folds",
    "quick-base": "flower_photos, all, tested in 5 folds",
    "good-base": "flower_photos, all, tested in 5 folds",
    "mini": "flower_photos, one fifth, tested in 5 folds",
    "base": "flower_photos, all, tested in 5 folds",
}


def row(
    title: str,
    images: int,
    train: Mapping[str, Any],
    tested: int,
    on_test: Mapping[str, float],
    command: str,
    say: Say,
) -> str:
    """A row: the data, the model and its settings, the accuracy on so many tested images, and the command."""
    settings = {key: train[key] for key in ("model", "crop", "epochs")}
    how = "{model}, {crop} pixels, {epochs} epochs from scratch"
    if train.get("head") == "solved":
        whole = "`good`: {model} of ImageNet, all layers, {epochs} epochs"
        how = "`quick`: {model} of ImageNet, its head solved" if train["freeze_backbone"] else whole
    accuracy, low, high = (on_test[key] for key in ("accuracy", "accuracy_low", "accuracy_high"))
    parts = (
        say(title),
        f"{images:,}",
        say(how, **settings),
        say(
            "{accuracy:.3f} ({low:.3f} to {high:.3f}, {images} images)",
            accuracy=accuracy, low=low, high=high, images=f"{tested:,}",
        ),
        f"`{command}`",
    )  # fmt: skip
    return f"| {' | '.join(parts)} |"


def of_demo(say: Say) -> str:
    """The recorded demo as a row."""
    folder = PROJECT / record.DEMO
    on_test = figures.by_name(figures.read(folder / "metrics", EvalFigures))
    images = figures.image_counts(files.read_csv(folder / "metrics" / split_report.IMAGES))
    train = read_params(folder / params.FILE)["train"]
    return row("drawn flowers", sum(images.values()), train, images["test"], on_test, "make demo", say)


def of_recipe(name: str, title: str, say: Say) -> str:
    """A study of all folds as a row: every image is tested."""
    study = record.read(PROJECT / record.RECIPES / f"{name}.json")
    train = {key.removeprefix("train."): value for key, value in study.params.items()}
    images = int(study.figures["images"])
    return row(title, images, train, images, study.figures, f"perennial folds --recipe {name}", say)


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


def table(say: Say) -> str:
    """The README's table of results."""
    titles = ("data", "images", "model", "test accuracy (95 % interval)", "made by")
    head = [f"| {' | '.join(map(say, titles))} |", "|---|---|---|---|---|"]
    studies = [of_recipe(name, title, say) for name, title in RECIPES.items()]
    return "\n".join([*head, *studies, of_demo(say)])
