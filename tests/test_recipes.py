"""The recorded recipes can be repeated, and the tables of docs/folds.md are made from committed figures."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality import recipes
from pipeline import folds
from pipeline.base import files
from pipeline.config import params
from pipeline.studies import record
from tests.conftest import PROJECT, change

RECORDS = sorted((PROJECT / record.RECIPES).glob("*.json"))
REHEARSED = sorted((PROJECT / "results/fine_tuning").glob("*.json"))
PHOTOS = ("path", "class", "split", "reason", "width", "height", "pixels", "phash", "group")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_recipe_can_be_repeated_here(path: Path, raw: dict[str, Any]) -> None:
    """Its params are accepted on a CPU, whatever params.yaml says; it has every seed with every fold."""
    found = record.read(path)
    config = params.parse(change(raw, train__lr=0.77))
    chosen = folds.study(config, None, None, 1, found)
    repeated = params.changed(config, chosen.changes(chosen.seeds[0], 0))
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


def test_the_documents_have_the_committed_figures() -> None:
    """Both tables of docs/folds.md are the ones made here, and each row has its record."""
    content = json.loads((PROJECT / recipes.RESULT).read_text())
    text = (PROJECT / recipes.DOCUMENT).read_text()
    assert recipes.filled(text, content) == text, "run: python -m benchmarks recipes"
    for row in content["rows"]:
        found = record.read(PROJECT / record.RECIPES / f"{row['name']}.json")
        assert (row["accuracy"], row["seeds"]) == (found.figures["accuracy"], found.seeds)


def test_the_document_has_the_figures_of_the_rehearsal() -> None:
    """The accuracy and its interval, of both."""
    text = (PROJECT / recipes.DOCUMENT).read_text()
    for path in REHEARSED:
        accuracy, low, high = (record.read(path).figures[f"accuracy{end}"] for end in ("", "_low", "_high"))
        assert f"{accuracy:.4f} ({low:.4f} to {high:.4f}) | `results/fine_tuning/{path.name}`" in text


def test_the_document_has_the_figures_of_several_seeds() -> None:
    """The accuracy of each seed over all images, their mean and their standard deviation."""
    found = record.read(PROJECT / record.RECIPES / "base_seeds.json")
    images = int(found.figures["images"])
    right = [sum(part.right for part in found.parts if part.seed == seed) for seed in found.seeds]
    first, *others, last = (f"{count / images:.4f}" for count in right)
    mean, deviation = (found.figures[f"over_seeds.{name}"] for name in ("mean", "deviation"))
    said = f"{', '.join([first, *others])} and {last} over all images, so {mean:.4f} ± {deviation:.4f}"
    assert said in (PROJECT / recipes.DOCUMENT).read_text()
    assert statistics.stdev(count / images for count in right) == pytest.approx(deviation, abs=1e-9)
    base = record.read(PROJECT / record.RECIPES / "base.json")
    assert (found.params, found.parts[: len(base.parts)]) == (base.params, base.parts)


def test_duplicates_are_related_whatever_the_split_did_with_them(tmp_path: Path) -> None:
    """A near duplicate has the group of the other, an exact one names the image that is kept, a conflict no group."""
    rows = [
        ("a/1", "a", "train", "", 9, 9, "p1", "", "g1"),
        ("a/2", "a", "train", "", 9, 9, "p2", "", "g1"),
        ("a/3", "a", "", "duplicate of a/1", 9, 9, "p1", "", ""),
        ("a/4", "a", "", "conflicting labels", 9, 9, "p4", "", ""),
        ("b/4", "b", "", "conflicting labels", 9, 9, "p4", "", ""),
        ("b/5", "b", "val", "", 9, 9, "p5", "", "g5"),
    ]
    files.write_csv(tmp_path / "split.csv", PHOTOS, rows)
    assert recipes.relatives(tmp_path / "split.csv") == {
        "a/1": {"a/2", "a/3"}, "a/2": {"a/1", "a/3"}, "a/3": {"a/1", "a/2"}, "a/4": {"b/4"}, "b/4": {"a/4"},
    }  # fmt: skip


def test_an_image_is_leaked_if_a_duplicate_is_in_another_fold() -> None:
    """In the same fold both are test images, so none was trained on."""
    ignored = {path: {"fold": fold} for path, fold in (("a", "0"), ("b", "1"), ("c", "2"), ("d", "2"))}
    related = {"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"c"}, "e": {"a"}}
    assert recipes.leaked(ignored, related) == ["a", "b"]


def put_study(folder: Path, values: dict[str, Any], answered: dict[str, tuple[str, str, str]]) -> None:
    """A study of one seed: path → fold, label, prediction."""
    right = sum(label == prediction for _, label, prediction in answered.values())
    figures = {"images": len(answered), "accuracy": right / len(answered), "accuracy_low": 0.0, "accuracy_high": 1.0,
               "over_folds.deviation": 0.125}  # fmt: skip
    part = record.Part(0, 0, len(answered), right, "a" * 32, "b" * 32)
    record.write(folder / "summary.json", record.Record(values, {}, figures, (part,)))
    rows = [(path, *cells) for path, cells in answered.items()]
    files.write_csv(folder / "predictions.csv", ("path", "fold", "label", "prediction"), rows)


def test_steps_are_compared_with_the_first_one_on_the_same_images(tmp_path: Path) -> None:
    """More right answers are a gain. With the rule left out, images with a duplicate elsewhere are counted alone."""
    base = {"a/1": ("0", "a", "a"), "a/2": ("0", "a", "b"), "b/1": ("1", "b", "a"), "b/2": ("1", "b", "b")}
    put_study(tmp_path / "base", {"train.lr": 0.1, "train.epochs": 3}, base)
    better = base | {"a/2": ("0", "a", "a")}
    put_study(tmp_path / "long", {"train.lr": 0.1, "train.epochs": 9}, better)
    ignored = base | {"a/2": ("1", "a", "a"), "b/copy": ("0", "b", "b")}  # a/1 and a/2 are in two folds now
    put_study(tmp_path / "ignore", {"train.lr": 0.1, "train.epochs": 3}, ignored)
    groups = {"a/1": "g", "a/2": "g", "b/1": "h", "b/2": "i"}
    rows = [(path, path[0], "test", "", 9, 9, f"p {path}", "", group) for path, group in groups.items()]
    files.write_csv(tmp_path / "base/split.csv", PHOTOS, [*rows, ("b/copy", "b", "", "duplicate of b/2", *[""] * 5)])
    found = recipes.report(tmp_path)
    first, second = found["rows"]
    assert (first["name"], first["changes"], first["points"]) == ("base", {}, 0)
    assert (second["name"], second["changes"], second["points"]) == ("long", {"train.epochs": 9}, 25)
    price = found["duplicates"]
    together, ignore = price["rows"]["together"], price["rows"]["ignore"]
    assert (together["images"], together["right"], ignore["images"], ignore["right"]) == (4, 2, 5, 4)
    assert (price["affected"], together["affected_right"], ignore["affected_right"]) == (3, 2, 3)
    assert (price["others"], price["others_points"]) == (1, 0)
