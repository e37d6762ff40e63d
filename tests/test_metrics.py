"""The figures, held against scikit-learn, scipy and closed forms; and their files."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, log_loss, precision_recall_fscore_support

from pipeline.base import files
from pipeline.evaluation import figures, metrics
from pipeline.evaluation.figures import EvalFigures, TrainFigures
from tests.conftest import PROJECT

Case = tuple[NDArray[np.float64], NDArray[np.int64]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Log-probabilities [n, K] and labels [n], often with classes that no image has or that nothing was taken for."""
    n, k = draw(st.integers(1, 40)), draw(st.integers(2, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = random.normal(size=(n, k)) * draw(st.sampled_from([0.1, 1.0, 30.0]))
    present = draw(st.lists(st.integers(0, k - 1), min_size=1, max_size=k))
    return log_softmax(logits), random.choice(np.array(present), n)


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(1, keepdims=True)
    normalized: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return normalized


@given(cases())
def test_figures_equal_scikit_learns(case: Case) -> None:
    """Of all images and of each class, absent ones included; balanced accuracy is that of the classes that occur."""
    log_probabilities, labels = case
    k = log_probabilities.shape[1]
    names = [f"c{i}" for i in range(k)]
    figures, predictions = metrics.summary(log_probabilities, labels), log_probabilities.argmax(1)

    assert figures.accuracy == pytest.approx(accuracy_score(labels, predictions))
    recall = [np.mean(predictions[labels == c] == c) for c in np.unique(labels)]
    assert figures.balanced_accuracy == pytest.approx(np.mean(recall))
    interval = metrics.wilson(int((labels == predictions).sum()), len(labels))
    assert (figures.accuracy_low, figures.accuracy_high) == interval
    assert figures.macro_f1 == pytest.approx(
        f1_score(labels, predictions, labels=range(k), average="macro", zero_division=0)
    )
    counts = metrics.confusion(predictions, labels, k)
    assert (counts == confusion_matrix(labels, predictions, labels=range(k))).all()
    by_class = precision_recall_fscore_support(labels, predictions, labels=range(k), zero_division=0)
    rows = metrics.class_table(counts, names)
    assert [row.name for row in rows] == names
    assert sum(row.images for row in rows) == len(labels)
    for row, values in zip(rows, zip(*by_class, strict=True), strict=True):
        assert (row.precision, row.recall, row.f1, row.images) == pytest.approx(values)
    # scikit-learn clips probabilities away from 0, which a log-probability does not need.
    if log_probabilities.min() > math.log(np.finfo(np.float64).eps):
        assert figures.nll == pytest.approx(log_loss(labels, np.exp(log_probabilities), labels=range(k)))


@given(st.integers(1, 5000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_wilson_interval(case: tuple[int, int]) -> None:
    """The interval is scipy's, and holds the share."""
    right, total = case
    low, high = metrics.wilson(right, total)
    assert metrics.share(right, total).share == right / total
    interval = binomtest(right, total).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((interval.low, interval.high), abs=1e-12)
    assert 0 <= low <= right / total <= high <= 1
    assert (low == 0, high == 1) == (right == 0, right == total)


def calibration(log_probabilities: NDArray[np.float64], labels: NDArray[np.int64], bins: int) -> list[metrics.Bin]:
    """The calibration table with another number of bins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "BINS", bins)
        return metrics.calibration(log_probabilities, labels)


def test_bins_of_known_images() -> None:
    """Two bins give the sum of their distances, weighed by their images. Bins are open below and closed above.

    A confidence of a little more than 1 is in the last bin, none at all is in the first. A sure mistake stays finite.
    """
    probabilities = np.array([[0.6, 0.4], [0.6, 0.4], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1]])
    table = calibration(np.log(probabilities), np.array([0, 1, 0, 0, 0, 1]), bins=5)
    assert [(row.low, row.high, row.count, row.accuracy) for row in table] == [(0.4, 0.6, 2, 0.5), (0.8, 1.0, 4, 0.75)]
    assert [row.confidence for row in table] == pytest.approx([0.6, 0.9])
    assert metrics.calibration_error(table) == pytest.approx((2 * 0.1 + 4 * 0.15) / 6)
    for log_probabilities, low in (
        (np.log([[0.5, 0.5], [1.0, 1e-300]]), 0.25), (np.array([[-1e9, -1e9], [1e-12, -30.0]]), 0.0)
    ):  # fmt: skip
        table = calibration(log_probabilities, np.array([0, 0]), bins=4)
        assert [(row.low, row.high, row.count) for row in table] == [(low, low + 0.25, 1), (0.75, 1.0, 1)]
    figures = metrics.summary(np.array([[0.0, -2000.0]]), np.array([1]))
    assert (figures.nll, figures.ece) == (2000, 1)


@example([(False, True)] * 5)
@example([(False, True)] * 6)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_p_is_the_chance_of_so_uneven_a_coin(pairs: list[tuple[bool, bool]]) -> None:
    """p adds up the chances of all outcomes of a fair coin that are as likely as this one, or less."""
    first, second = ([pair[index] for pair in pairs] for index in (0, 1))
    test = metrics.mcnemar(first, second)
    alone = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    assert (test.images, test.first_alone, test.second_alone) == (len(pairs), *alone)
    count = sum(alone)
    chances = [math.comb(count, k) / 2**count for k in range(count + 1)]
    p = sum(chance for chance in chances if chance <= chances[alone[0]] * (1 + 1e-9))
    assert test.p == pytest.approx(p)
    assert test.points == pytest.approx(100 * (np.mean(second) - np.mean(first)))
    assert test.is_significant == (p < metrics.LEVEL)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [(TrainFigures, {}), (TrainFigures, {"stopped_early": True}), (TrainFigures, {"stopped_early": False}),
     (EvalFigures, {})],
)  # fmt: skip
def test_figures_keep_their_bytes(tmp_path: Path, kind: type[Any], changes: dict[str, Any]) -> None:
    """The same digits and order of keys; only a training with patience says whether it ended early."""
    path = tmp_path / figures.FILES[kind]
    files.write_json(path, json.loads((PROJECT / "results/demo/metrics" / path.name).read_text()) | changes)
    before = path.read_text()
    assert changes or before == (PROJECT / "results/demo/metrics" / path.name).read_text()
    figures.write(tmp_path, figures.read(tmp_path, kind))
    assert path.read_text() == before
