"""The learning rate is a pure function of the step."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.schedule import factor


@given(steps=st.integers(1, 500), data=st.data())
def test_a_cosine_falls_from_one_towards_its_end(steps: int, data: st.DataObject) -> None:
    """Up to 1 in the warm-up, then never up again, and never below the final share."""
    warmup, final = data.draw(st.integers(0, steps)), data.draw(st.floats(0, 1))
    rates = [factor("cosine", step, steps, warmup, final) for step in range(steps)]
    assert all(a < b for a, b in itertools.pairwise(rates))
    assert all(a >= b for a, b in zip(rates[warmup:], rates[warmup + 1 :], strict=False))
    assert all(final - 1e-12 <= rate <= 1 for rate in rates[warmup:])


def test_the_cosine_of_the_tutorial() -> None:
    """Without warm-up, to a tenth: the closed form ((1 + cos(pi t)) / 2) 0.9 + 0.1."""
    for step in range(30):
        expected = (1 + math.cos(step * math.pi / 30)) / 2 * 0.9 + 0.1
        assert factor("cosine", step, 30, 0, 0.1) == pytest.approx(expected, abs=1e-12)


def test_constant_stays_after_the_warm_up() -> None:
    """A constant schedule warms up linearly and then stays."""
    assert [factor("constant", step, 6, 4, 0.0) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
