"""exp, log and log-softmax of float64: the same bits on every processor.

NumPy, torch and the C library have other code for other instructions, and so other last digits. Here each step is one
operation of NumPy that IEEE 754 defines: + − × ÷, a rounding, or a change of the exponent. A product and a sum are two
operations, so nothing can fuse them. The formulas for the reduced arguments are those of fdlibm [Sun 1993], with the
coefficients of Taylor's series. An error is below 1 unit in the last place.
"""

import math

import numpy as np
from numpy.typing import NDArray

LN2_HIGH = float.fromhex("0x1.62e42feep-1")  # ln 2 in two parts: the product of this one and an exponent is exact
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
LOWEST = -746.0  # its exponential is 0
AT_ONCE = 2**14  # numbers that stay in the cache of the CPU for all terms
EXP_TERMS = tuple(1 / math.factorial(n) for n in reversed(range(2, 14)))
LOG_TERMS = tuple(2 / (2 * n + 1) for n in reversed(range(1, 11)))

Floats = NDArray[np.float64]


def exp(values: Floats) -> Floats:
    """e to the power of each value, for finite values below 709."""
    flat = values.ravel()
    result = np.empty_like(flat)
    for start in range(0, len(flat), AT_ONCE):
        part = np.maximum(flat[start : start + AT_ONCE], LOWEST)
        octaves = np.rint(part / (LN2_HIGH + LN2_LOW))
        high, low = part - octaves * LN2_HIGH, octaves * LN2_LOW
        rest = high - low
        sums = 1 + (high + (rest * rest * _polynomial(EXP_TERMS, rest) - low))
        result[start : start + AT_ONCE] = np.ldexp(sums, octaves.astype(np.int32))
    return result.reshape(values.shape)


def log(values: Floats) -> Floats:
    """The natural logarithm of each value, for finite values above 0."""
    share, octaves = np.frexp(values)
    is_low = share < math.sqrt(0.5)
    share, octaves = np.where(is_low, 2 * share, share), octaves - is_low
    more = share - 1
    ratio, half = more / (2 + more), more * more / 2
    square = ratio * ratio
    series = square * _polynomial(LOG_TERMS, square)
    result: Floats = octaves * LN2_HIGH - ((half - (ratio * (half + series) + octaves * LN2_LOW)) - more)
    return result


def log_softmax(logits: Floats) -> Floats:
    """The log-probabilities [n, classes] of finite logits [n, classes]. The classes are added in their order."""
    shifted = logits - logits.max(1, keepdims=True)
    result: Floats = shifted - log(np.cumsum(exp(shifted), 1)[:, -1:])
    return result


def _polynomial(terms: tuple[float, ...], values: Floats) -> Floats:
    """terms[0] · value**n + … + terms[n] for each value."""
    result = np.full_like(values, terms[0])
    for term in terms[1:]:
        result *= values
        result += term
    return result
