"""The recorded recipes can be repeated, and docs/folds.md has their figures."""

import statistics
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands import folds
from pipeline.config import params
from pipeline.reruns import record
from tests.conftest import PROJECT, change

RECORDS = sorted((PROJECT / record.RECIPES).glob("*.json"))
REHEARSED = sorted((PROJECT / "results/fine_tuning").glob("*.json"))
DOCUMENT = (PROJECT / "docs/folds.md").read_text()


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_recipe_can_be_repeated_here(path: Path, raw: dict[str, Any]) -> None:
    """Its params are accepted on a CPU, whatever params.yaml says; it has every seed with every fold."""
    found = record.read(path)
    config = params.parse(change(raw, train__lr=0.77))
    chosen = folds.make_study(config, None, None, 1, found)
    repeated = params.with_values(config, chosen.changes(chosen.seeds[0], 0))
    assert record.decisive(repeated) == found.params
    assert {(part.seed, part.fold) for part in found.parts} == {
        (seed, fold) for seed in chosen.seeds for fold in range(chosen.folds)
    }


@pytest.mark.parametrize("path", [*RECORDS, *REHEARSED], ids=lambda path: path.stem)
def test_the_figures_of_a_recipe_are_those_of_its_parts(path: Path) -> None:
    """The accuracy is the right answers of all trainings divided by their test images."""
    found = record.read(path)
    images, right = (sum(getattr(part, name) for part in found.parts) for name in ("images", "right"))
    assert found.figures["images"] * len(found.seeds) == images
    assert found.figures["accuracy"] == pytest.approx(right / images, abs=1e-9)


TABULATED = [path for path in (*RECORDS, *REHEARSED) if path.stem != "base_seeds"]


@pytest.mark.parametrize("path", TABULATED, ids=lambda path: path.stem)
def test_the_document_has_the_figures_of_a_record(path: Path) -> None:
    """The accuracy and its interval, in docs/folds.md."""
    accuracy, low, high = (record.read(path).figures[f"accuracy{end}"] for end in ("", "_low", "_high"))
    assert f"{accuracy:.4f} ({low:.4f} to {high:.4f})" in DOCUMENT


def test_the_document_has_the_figures_of_several_seeds() -> None:
    """The accuracy of each seed over all images, their mean and their standard deviation."""
    found = record.read(PROJECT / record.RECIPES / "base_seeds.json")
    images = int(found.figures["images"])
    right = [sum(part.right for part in found.parts if part.seed == seed) for seed in found.seeds]
    first, *others, last = (f"{count / images:.4f}" for count in right)
    mean, deviation = (found.figures[f"over_seeds.{name}"] for name in ("mean", "deviation"))
    said = f"{', '.join([first, *others])} and {last} over all images, so {mean:.4f} ± {deviation:.4f}"
    assert said in DOCUMENT
    assert statistics.stdev(count / images for count in right) == pytest.approx(deviation, abs=1e-9)
    base = record.read(PROJECT / record.RECIPES / "base.json")
    assert (found.params, found.parts[: len(base.parts)]) == (base.params, base.parts)
