"""McNemar's exact test, held against the binomial distribution written out."""

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.evaluation import significance

RIGHT = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


@given(RIGHT)
def test_p_is_the_chance_of_so_uneven_a_coin(pairs: list[tuple[bool, bool]]) -> None:
    """p adds up the chances of all outcomes of a fair coin that are as likely as this one, or less."""
    first, second = ([pair[index] for pair in pairs] for index in (0, 1))
    found = significance.compare(first, second)
    alone = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    assert (found.images, found.first_alone, found.second_alone) == (len(pairs), *alone)
    thrown = sum(alone)
    chances = [comb(thrown, k) / 2**thrown for k in range(thrown + 1)]
    expected = sum(chance for chance in chances if chance <= chances[alone[0]] * (1 + 1e-9))
    assert found.p == pytest.approx(expected)
    assert found.points == pytest.approx(100 * (np.mean(second) - np.mean(first)))
    assert found.shown == (expected < significance.LEVEL)


def test_the_order_of_the_models_changes_the_sign_alone() -> None:
    """Points change their sign, p stays."""
    first, second = [True] * 12 + [False] * 3, [True] * 9 + [False] * 3 + [True] * 3
    there, back = significance.compare(first, second), significance.compare(second, first)
    assert (there.points, there.p) == (-back.points, back.p)


def test_five_against_none_is_not_shown_and_six_are() -> None:
    """2 / 2⁵ is 0.0625; 2 / 2⁶ is 0.03."""
    for alone, shown in ((5, False), (6, True)):
        found = significance.compare([False] * 50, [True] * alone + [False] * (50 - alone))
        assert (found.p, found.shown) == (2 / 2**alone, shown)


def test_equal_answers_show_nothing() -> None:
    """Without an image that only one model has right, p is 1."""
    assert significance.compare([True, False], [True, False]).p == 1
