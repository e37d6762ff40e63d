"""The README's table of results, made from the committed figures in results/."""

import json
from collections.abc import Mapping
from typing import Any

from pipeline.base import files
from pipeline.data.split_table import SPLITS
from pipeline.reruns import record
from tests.conftest import PROJECT, read_params
from tests.documents.phrases import Say

RUNS = {
    "demo": "`make demo`: drawn flowers",
    "flower_photos_mini": "flower_photos, one fifth",
    "flower_photos": "flower_photos, all",
}
RECIPE = ("long", "flower_photos, all, tested in 5 folds (`perennial folds --recipe long`)")


def cells(title: str, images: int, train: Mapping[str, Any], figures: Mapping[str, Any], tested: int, say: Say) -> str:
    """A row: the data, the model and its settings, and the accuracy on so many tested images."""
    settings = {key: train[key] for key in ("model", "crop", "epochs")}
    accuracy, low, high = (figures[key] for key in ("accuracy", "accuracy_low", "accuracy_high"))
    parts = (
        say(title),
        f"{images:,}",
        say("{model}, {crop} pixels, {epochs} epochs", **settings),
        say(
            "{accuracy:.3f} ({low:.3f} to {high:.3f}, {images} images)",
            accuracy=accuracy, low=low, high=high, images=f"{tested:,}",
        ),
    )  # fmt: skip
    return f"| {' | '.join(parts)} |"


def row(name: str, title: str, say: Say) -> str:
    """One run as a row: its data, model, settings and figures."""
    folder = PROJECT / "results" / name
    train = read_params(folder / "params.yaml")["train"]
    figures, classes = (
        json.loads((folder / "metrics/eval.json").read_text()),
        files.read_csv(folder / "metrics/images.csv"),
    )
    images = {name: sum(int(of[name]) for of in classes) for name in SPLITS}
    return cells(title, sum(images.values()), train, figures, images["test"], say)


def row_of_recipe(name: str, title: str, say: Say) -> str:
    """A study of all folds as a row: every image is tested."""
    found = record.read(PROJECT / record.RECIPES / f"{name}.json")
    train = {key.removeprefix("train."): value for key, value in found.params.items()}
    images = int(found.figures["images"])
    return cells(title, images, train, found.figures, images, say)


def table(say: Say) -> str:
    """The README's table of results."""
    titles = ("data", "images", "trained from scratch", "test accuracy (95 % interval)")
    head = f"| {' | '.join(map(say, titles))} |\n|---|---|---|---|\n"
    rows = [row(name, title, say) for name, title in RUNS.items()]
    return head + "\n".join([*rows, row_of_recipe(*RECIPE, say)])
