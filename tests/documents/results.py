"""The tables of results in both READMEs, made from the committed figures in results/."""

from collections.abc import Mapping
from typing import Any

from pipeline.base import files
from pipeline.config import params
from pipeline.data import split_report
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures
from pipeline.studies import record
from tests.conftest import PROJECT, read_params
from tests.documents.markdown import table

RECIPES = ("quick-mini", "good-mini", "best-mini", "quick-base", "good-base", "mini", "base")
TITLES = {  # the rows are the same in every language
    "README.md": "made by | images | model | pixels | weights | epochs | tested | test accuracy (95 % interval)",
    "README.zh.md": "由来 | 图片数 | 模型 | 像素 | 权重 | 轮数 | 测试图片数 | 测试准确率（95 % 置信区间）",
}


def row(command: str, images: int, train: Mapping[str, Any], tested: int, on_test: Mapping[str, float]) -> list[str]:
    """A row: the command, the images, the model and its settings, and the accuracy on the tested images."""
    solved = train.get("freeze_backbone")
    accuracy, low, high = (on_test[key] for key in ("accuracy", "accuracy_low", "accuracy_high"))
    epochs = "–" if solved else str(train["epochs"])
    settings = [train["model"], str(train["eval_crop"]), train["weights"], epochs]
    return [f"`{command}`", f"{images:,}", *settings, f"{tested:,}", f"{accuracy:.3f} ({low:.3f}–{high:.3f})"]


def of_demo() -> list[str]:
    """The recorded demo as a row."""
    folder = PROJECT / record.DEMO
    on_test = figures.by_name(figures.read(folder / "metrics", EvalFigures))
    images = figures.image_counts(files.read_csv(folder / "metrics" / split_report.IMAGES))
    return row("make demo", sum(images.values()), read_params(folder / params.FILE)["train"], images["test"], on_test)


def of_recipe(name: str) -> list[str]:
    """A study of all folds as a row: every image is tested."""
    study = record.read(PROJECT / record.RECIPES / f"{name}.json")
    train = {key.removeprefix("train."): value for key, value in study.params.items()}
    images = int(study.figures["images"])
    return row(f"perennial folds --recipe {name}", images, train, images, study.figures)


def of_readme(document: str) -> str:
    """The table of results of a README."""
    return table(TITLES[document], [*map(of_recipe, RECIPES), of_demo()])
