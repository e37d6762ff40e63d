"""The README's table of results is made from committed figures; the documents name what exists.

python -m tests.test_readme        writes it anew, in both languages
"""

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.phrases import READMES, Say, fill, marked, part
from pipeline.base import files
from pipeline.data.split_table import SPLITS
from pipeline.studies import record
from tests.conftest import PROJECT, read_params
from tests.test_structure import LAYERS

DOCUMENTS = (
    "README.md",
    "README.zh.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *(f"docs/{p.name}" for p in sorted(PROJECT.glob("docs/*.md"))),
)
FOLDERS = "pipeline|tests|benchmarks|docs|docker|requirements|results|.github"
BLOCK = marked("results")
RUNS = {
    "demo": "`make demo`: drawn flowers",
    "flower_photos_mini": "flower_photos, one fifth",
    "flower_photos": "flower_photos, all",
}
RECIPE = ("long", "flower_photos, all, tested in 5 folds (`make folds RECIPE=long`)")


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


@pytest.mark.parametrize("language", READMES)
def test_the_readme_has_the_results(language: str) -> None:
    """Its table of results, in both languages, is the one made here."""
    assert part(PROJECT, language, BLOCK) == table(READMES[language]), "run: python -m tests.test_readme"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_names_files_that_exist(document: str) -> None:
    """Every relative link of a document, and every path in code style, is a file or a folder of the project."""
    path = PROJECT / document
    text = path.read_text()
    links = re.findall(r"\]\((?!https?://|\.\./\.\./actions/)([^)#]+)", text)
    paths = re.findall(rf"`((?:{FOLDERS})/[\w./*-]*)`", text)
    assert [link for link in links if not (path.parent / link).exists()] == []
    assert [name for name in paths if not list(PROJECT.glob(name))] == []


def names(file: Path) -> set[str]:
    """The names of all functions, classes, methods and constants that a Python file defines."""
    defined = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    return defined


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_names_functions_and_tests_that_exist(document: str) -> None:
    """What follows a file (`file.py`: `one`, `two`) is defined there; a test is named by a part of its name."""
    for file, listed in re.findall(r"`([\w./]+\.py)`: (`[\w.]+`(?:, `[\w.]+`)*)", (PROJECT / document).read_text()):
        (path,) = [PROJECT / folder / file for folder in ("", "tests") if (PROJECT / folder / file).is_file()]
        tests = " ".join(name for name in names(path) if name.startswith("test_"))
        for name in re.findall(r"`([\w.]+)`", listed):
            assert names(path) >= set(name.split(".")) or name in tests, f"{document}: {file} has no {name}"


def test_the_drawing_of_the_layers_is_the_folders() -> None:
    """docs/architecture.md draws the layers in their order, from the top, each with its files."""
    text = (
        (PROJECT / "docs/architecture.md").read_text().partition("<!-- layers -->")[2].partition("<!-- /layers -->")[0]
    )
    drawn = dict(re.findall(r"^([a-z]+) .*\n((?:[ │]{5,}[\w ]+\n)+)", text, re.MULTILINE))
    folders = {layer or "commands": PROJECT / "pipeline" / layer for layer in reversed(LAYERS)}
    assert list(drawn) == list(folders)
    for layer, folder in folders.items():
        assert set(re.findall(r"\w+", drawn[layer])) == {path.stem for path in folder.glob("*.py")} - {"__init__"}, (
            layer
        )


def test_the_rings_of_tests_are_documented_and_ci_runs_the_second() -> None:
    """Each is one command of the README, with its time or what it needs; .ci/run is the README's, word for word."""
    documented = dict(re.findall(r"^(make test\S*) +# (.+)$", (PROJECT / "README.md").read_text(), re.MULTILINE))
    assert list(documented) == ["make test", "make test-all", "make test-gpu"]
    assert "minutes" in documented["make test"]
    assert "minutes" in documented["make test-all"]
    (command,) = (line for line in (PROJECT / ".ci/run").read_text().splitlines() if line.startswith("make "))
    assert command == "make test-all"


if __name__ == "__main__":
    fill(PROJECT, BLOCK, table)
