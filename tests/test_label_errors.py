"""Probable label errors, held against cleanlab."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.studies import label_errors
from pipeline.studies.label_errors import LabelError

Case = tuple[NDArray[np.float64], NDArray[np.int64]]


def find(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> list[LabelError]:
    """The findings; the path of an image is its row, and the name of a class its number."""
    numbers = [f"{number}" for number in range(max(probabilities.shape))]
    return label_errors.find(probabilities, labels, numbers, numbers)


def rows_of(found: list[LabelError]) -> list[int]:
    return [int(one.path) for one in found]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Probabilities [n, K] and labels [n] of at least two classes; often with ties, and classes without an image."""
    n, k = draw(st.integers(2, 80)), draw(st.integers(2, 7))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    present = random.permutation(k)[: draw(st.integers(2, k))]
    actual = np.concatenate([present[:2], random.choice(present, n - 2)])
    noise = draw(st.sampled_from([0.0, 0.1, 0.5]))
    labels = np.where(np.arange(n) < 2, actual, np.where(random.random(n) < noise, random.choice(present, n), actual))
    concentration = np.full((n, k), draw(st.sampled_from([0.02, 0.5, 3.0])))
    concentration[np.arange(n), actual] += draw(st.sampled_from([0.0, 1.0, 8.0]))
    probabilities = np.stack([random.dirichlet(row) for row in concentration])
    if steps := draw(st.sampled_from([0, 4, 20])):  # multiples of 1/4 or 1/20: many ties
        counts = np.stack([random.multinomial(steps, row / row.sum() * (1 - 1e-12)) for row in probabilities])
        probabilities = counts / steps
    return probabilities, labels


# The threshold of a class that is never recognized would be 0. It is a little more, as cleanlab has it.
NEVER = np.array([[0.3, 1.5e-6, 0.7 - 1.5e-6], [0.3, 0.5e-6, 0.7 - 0.5e-6], [0.6, 0.0, 0.4]]), np.array([0, 0, 1])


@given(cases())
@example(NEVER)
def test_the_findings_are_cleanlabs(case: Case) -> None:
    """The images, scores and order of its filter "confident_learning"; images of one score in the order of rows."""
    from cleanlab.filter import find_label_issues  # a second, which each process that collects the tests would take
    from cleanlab.rank import get_normalized_margin_for_each_label

    probabilities, labels = case
    ours = find(probabilities, labels)
    theirs = find_label_issues(
        labels, probabilities, filter_by="confident_learning", return_indices_ranked_by="normalized_margin", n_jobs=1
    )
    scores = get_normalized_margin_for_each_label(labels, probabilities)
    assert rows_of(ours) == sorted(theirs, key=lambda row: (scores[row], row))
    assert [one.score for one in ours] == scores[theirs].tolist()
    for rank, (row, one) in enumerate(zip(rows_of(ours), ours, strict=True), start=1):
        given, suggested = int(one.given), int(one.suggested)
        assert (one.rank, given, suggested) == (rank, labels[row], probabilities[row].argmax())
        assert suggested != given
        assert (one.p_given, one.p_suggested) == tuple(probabilities[row, [given, suggested]])


def test_the_order_of_the_rows_decides_nothing_but_ties() -> None:
    """The thresholds are exact sums, so another order of the images gives the same findings."""
    random = np.random.default_rng(1)
    probabilities, labels = random.dirichlet([0.3] * 4, 500), random.integers(0, 4, 500)
    order = random.permutation(500)
    once = find(probabilities, labels)
    again = find(probabilities[order], labels[order])
    assert len(once) > 50
    assert order[rows_of(again)].tolist() == rows_of(once)
    sums = label_errors.thresholds(probabilities, labels)
    assert sums.tolist() == label_errors.thresholds(probabilities[order], labels[order]).tolist()


def test_the_table_has_names_and_rounded_figures() -> None:
    """Figures have six digits, so that the last bits of a sum are not in it. And the words for a correction."""
    errors = [LabelError(1, "b/2.png", "a", "b", 0.1 + 0.2, 2 / 3, 0.95 / 3)]
    errors.append(LabelError(2, "a/x, y.png", "b", "a", 0.4, 0.6, 0.4))
    header, rows = label_errors.table(errors)
    assert header == ("rank", "path", "given", "suggested", "p_given", "p_suggested", "score")
    assert rows == [(1, "b/2.png", "a", "b", 0.3, 0.666667, 0.316667), (2, "a/x, y.png", "b", "a", 0.4, 0.6, 0.4)]
    assert errors[0].reason == "label error 1: a 0.30, b 0.67"


def test_weak_models_do_not_judge_labels() -> None:
    """A model that suspects more than a tenth of the labels is said to be weak."""
    assert [bool(label_errors.doubt(found, 500)) for found in (0, 50, 51, 400)] == [False, False, True, True]
