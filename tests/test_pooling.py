"""The answers of all folds together: every image once with each seed, and figures from counts."""

import statistics
from collections.abc import Mapping
from dataclasses import asdict, astuple, replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.base import files
from pipeline.evaluation import metrics
from pipeline.studies import pooling
from tests.helpers.refusals import refuses

CLASSES = ("a, b", "daisy", "郁金香")
LABELS = {f"{CLASSES[k % 3]}/{k:02d}.png": CLASSES[k % 3] for k in range(30)}
HEADER = ("path", "label", "prediction", *(f"p_{name}" for name in CLASSES))
Rows = list[tuple[object, ...]]


def draw(seed: int, fold: int, folds: int) -> Rows:
    """Rows of predictions.csv: invented answers for every image whose number leaves the rest `fold`."""
    random = np.random.default_rng([seed, fold])
    rows = []
    for path, label in list(LABELS.items())[fold::folds]:
        chances = random.dirichlet(np.where(np.array(CLASSES) == label, 3.0, 1.0))
        rows.append((path, label, CLASSES[chances.argmax()], *chances.tolist()))
    return rows


def put(folder: Path, content: Mapping[tuple[int, int], Rows]) -> dict[tuple[int, int], Path]:
    """Write a table for each seed and fold."""
    tables = {key: folder / f"{key[0]}-{key[1]}.csv" for key in content}
    for key, path in tables.items():
        files.write_csv(path, HEADER, content[key])
    return tables


def content(seeds: tuple[int, ...] = (0,), folds: int = 3) -> dict[tuple[int, int], Rows]:
    return {(seed, fold): draw(seed, fold, folds) for seed in seeds for fold in range(folds)}


def test_every_image_has_the_answer_of_its_fold(tmp_path: Path) -> None:
    """Sorted by path, with label, fold and exact probabilities; in any order of the tables."""
    rows_by_fold = content((7, 3))
    predictions = pooling.read(dict(reversed(put(tmp_path, rows_by_fold).items())), LABELS)
    assert (predictions.classes, predictions.paths, predictions.seeds) == (CLASSES, tuple(sorted(LABELS)), (3, 7))
    for (seed, fold), rows in rows_by_fold.items():
        for path, label, _, *chances in rows:
            row = predictions.paths.index(str(path))
            assert (CLASSES[predictions.labels[row]], predictions.folds[row]) == (label, fold)
            assert predictions.by_seed[predictions.seeds.index(seed), row].tolist() == chances


def test_figures_of_one_seed_are_those_of_all_images(tmp_path: Path) -> None:
    """The same as of one test set of all images; the folds are counted one by one."""
    tables = put(tmp_path, rows_by_fold := content())
    figures = pooling.figures(answers := pooling.read(tables, LABELS))
    expected = metrics.summary(answers.log_probs[0], answers.labels)
    assert [getattr(figures, key) for key in asdict(expected)] == pytest.approx(astuple(expected), rel=1e-11)
    assert (figures.interval, figures.accuracy_of_mean) == (expected.interval, figures.accuracy)
    right = [sum(row[1] == row[2] for row in rows) for rows in rows_by_fold.values()]
    assert [(part.fold, part.images, part.right) for part in figures.parts] == [(k, 10, right[k]) for k in range(3)]
    shares = [count / 10 for count in right]
    assert figures.over_folds.mean == pytest.approx(statistics.mean(shares))
    assert figures.over_folds.deviation == pytest.approx(statistics.stdev(shares))
    assert (figures.over_seeds.count, figures.over_seeds.mean, figures.over_seeds.deviation) == (1, figures.accuracy, 0)


def test_more_seeds_give_no_narrower_interval(tmp_path: Path) -> None:
    """Figures are means over seeds, and the interval is that of the images, which are the same for every seed."""
    tables = put(tmp_path, content((1, 2, 3)))
    answers = pooling.read(tables, LABELS)
    figures = pooling.figures(answers)
    alone = [
        pooling.figures(replace(answers, seeds=answers.seeds[k : k + 1], by_seed=answers.by_seed[[k]]))
        for k in range(3)
    ]
    for key in ("accuracy", "balanced_accuracy", "macro_f1", "nll", "ece"):
        assert getattr(figures, key) == pytest.approx(statistics.mean(getattr(one, key) for one in alone))
    assert figures.interval == metrics.wilson(figures.accuracy * 30, 30)
    assert figures.over_seeds == pooling.spread([one.accuracy for one in alone])
    assert figures.over_folds.count == len(figures.parts) == 9
    assert figures.parts == tuple(part for one in alone for part in one.parts)


def test_one_answer_per_image_is_from_the_mean_of_its_probabilities(tmp_path: Path) -> None:
    """The table has each image once, with its fold and the class with the highest mean probability."""
    rows_by_fold = content((1, 2))
    answers = pooling.read(put(tmp_path, rows_by_fold), LABELS)
    header, rows = pooling.table(answers)
    assert header == ("path", "fold", *HEADER[1:])
    assert [row[0] for row in rows] == sorted(LABELS)
    by_path = [{row[0]: row[3:] for fold in range(3) for row in rows_by_fold[seed, fold]} for seed in (1, 2)]
    for path, _, label, guess, *chances in rows:
        mean = np.mean([np.array(one[path], float) for one in by_path], 0)
        np.testing.assert_allclose(np.array(chances, float), mean, rtol=1e-15)
        assert (label, guess) == (LABELS[str(path)], CLASSES[mean.argmax()])
    assert pooling.figures(answers).accuracy_of_mean == np.mean([row[2] == row[3] for row in rows])


def test_a_probability_of_0_keeps_the_log_likelihood_finite(tmp_path: Path) -> None:
    """JSON has no infinite figure."""
    path, label = next(iter(LABELS.items()))
    tables = put(tmp_path, {(0, 0): [(path, label, "daisy", 0.0, 1.0, 0.0), *draw(0, 0, 1)[1:]]})
    assert 24 < pooling.figures(pooling.read(tables, LABELS)).nll < 27


def test_an_image_is_tested_exactly_once_with_each_seed(tmp_path: Path) -> None:
    """One in two folds, in none, or in another fold with another seed is refused by name."""
    twice, never, other = content(), content((4, 5)), content((4, 5))
    twice[0, 1].append(twice[0, 0][0])
    path = never[5, 2].pop(3)[0]
    other[5, 0], other[5, 1] = other[5, 1], other[5, 0]
    for rows_by_fold, key in ((twice, "a, b/00.png"), (never, path), (other, "a, b/00.png")):
        with refuses((key, "differs")):
            pooling.read(put(tmp_path, rows_by_fold), LABELS)
