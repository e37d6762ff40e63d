"""exp, log and log-softmax of base/elementary.py: small errors, for any neighbours and layout."""

from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.base import elementary
from pipeline.learning import temperature

Floats = NDArray[np.float64]


def logits(images: int = 600, classes: int = 37) -> Floats:
    """Logits that are nearly equal in some rows, and differ by more than 745 in others."""
    numbers = np.arange(images * classes, dtype=np.int64) * 7919 % 100_003 - 50_000
    return numbers.reshape(images, classes) / 2**15 * (np.arange(images)[:, None] % 300 + 0.1)


@pytest.mark.parametrize(
    ("function", "exact", "values"),
    [
        (elementary.exp, Decimal.exp, -np.geomspace(1e-9, 708, 3000)),
        (elementary.exp, Decimal.exp, np.array([0, 1, 700, -708.5, -744, -745.2, -1e300])),
        (elementary.log, Decimal.ln, np.geomspace(1, 1e5, 3000)),
        (elementary.log, Decimal.ln, 1 + np.geomspace(2.0**-52, 1, 1000)),
        (elementary.log, Decimal.ln, np.array([5e-324, 1e-300, 0.5, np.nextafter(1, 0), 1e300])),
    ],
)
def test_an_error_is_below_one_unit_in_the_last_place(
    function: Callable[[Floats], Floats], exact: Callable[[Decimal], Decimal], values: Floats
) -> None:
    """Compared with 40 decimal digits, also where the result is 0 or has fewer bits."""
    with localcontext(prec=40):
        for value, result in zip(values.tolist(), function(values).tolist(), strict=True):
            expected = exact(Decimal(value))
            assert abs(Decimal(result) - expected) < Decimal(float(np.spacing(abs(float(expected))))), value


def test_an_answer_depends_neither_on_other_images_nor_on_the_layout() -> None:
    """Rows alone, and columns that are contiguous, give the bits of all; torch gives nearly the same numbers."""
    values = logits()
    together = elementary.log_softmax(values)
    assert np.array_equal(elementary.log_softmax(np.asfortranarray(values)), together)
    assert np.array_equal(np.concatenate([elementary.log_softmax(row[None]) for row in values]), together)
    assert np.allclose(together, torch.log_softmax(torch.from_numpy(values), 1).numpy(), rtol=1e-14, atol=1e-15)


def test_each_temperature_is_the_nearest_number() -> None:
    """So it does not depend on how a C library computes powers."""
    with localcontext(prec=40):
        steps = range(-temperature.OCTAVE * temperature.OCTAVES, temperature.OCTAVE * temperature.OCTAVES + 1)
        expected = [float(Decimal(2) ** (Decimal(step) / temperature.OCTAVE)) for step in steps]
    assert [temperature._factor(step) for step in steps] == expected
