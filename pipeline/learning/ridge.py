"""A linear head, solved: ridge regression on standardized features.

On photos of flowers it is as accurate as logistic regression (docs/presets.md), and it needs only + − × ÷ √, which IEEE
754 defines. So the bits of `solve` depend neither on the CPU nor on threads: standardized features are rounded to whole
numbers, whose products a library of matrices adds exactly in any order, and the equations are solved by operations on
single elements in a fixed order.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEPS = 256  # whole numbers are features in 1/STEPS of a standard deviation,
LARGEST = (
    16 * STEPS
)  # and at most so large: a sum of products of 2**29 images is below 2**53, which float64 adds exactly
HEAD_BITS = 22  # float32 has them
AT_ONCE = 4096  # images whose features are in memory as float64
STRIP = 128  # rows that are updated together: their numbers stay in the cache of the CPU

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Head:
    """A linear layer: logits = features · weight.T + bias."""

    weight: Floats  # [classes, d]
    bias: Floats  # [classes]

    def logits(self, features: NDArray[np.float32]) -> Floats:
        """The logits [n, classes] of features [n, d]."""
        result: Floats = features.astype(np.float64) @ self.weight.T + self.bias
        return result

    def on_grid(self) -> "Head":
        """The nearest head whose numbers are multiples of one power of two, with at most HEAD_BITS bits.

        Of features that are multiples of another one, float64 then adds the products exactly, in any order.
        """
        step = 2.0 ** (math.frexp(max(np.abs(self.weight).max(), np.abs(self.bias).max()))[1] - HEAD_BITS)
        return Head(np.rint(self.weight / step) * step, np.rint(self.bias / step) * step)

    def sharper(self, factor: float) -> "Head":
        """The head whose logits are `factor` times these."""
        return Head(self.weight * factor, self.bias * factor)


def solve(features: NDArray[np.float32], labels: NDArray[np.int64], class_weights: Floats, l2: float) -> Head:
    """The head of ridge regression on one-hot targets, from features [n, d] and labels [n] of `class_weights` [K].

    It minimizes Σ w · |standardized features · W + b − target|² + l2 · d · |W|², with w the weight of an image's class.
    l2 is above 0, so there is one solution for every number of images. The scaling of the standardization is folded
    into the head. A class without an image gets the logit 0.
    """
    count, size = features.shape
    mean = sum_rows(features) / count
    deviation = np.sqrt(sum_rows(features, mean) / count)
    deviation[deviation == 0] = 1  # such a feature gets no weight
    total = float((class_weights * np.bincount(labels, minlength=len(class_weights))).sum())
    matrix, sums = np.zeros((size, size)), np.zeros((len(class_weights), size))
    for label, weight in enumerate(class_weights):
        rows = np.flatnonzero(labels == label)
        for part in np.split(rows, range(AT_ONCE, len(rows), AT_ONCE)):
            whole = np.rint((features[part].astype(np.float64) - mean) / deviation * STEPS).clip(-LARGEST, LARGEST)
            matrix += weight * (whole.T @ whole / STEPS**2)
            sums[label] += whole.sum(0) / STEPS
    weighted = sums * class_weights[:, None]
    shares = class_weights * np.bincount(labels, minlength=len(class_weights)) / total
    centre = np.add.reduce(weighted, 0) / total
    matrix -= np.multiply.outer(centre, centre) * total
    matrix[np.diag_indices(size)] += l2 * size
    weight = solve_symmetric(matrix, (weighted - shares[:, None] * (centre * total)).T)
    bias = shares - np.add.reduce(weight * (mean / deviation + centre)[:, None], 0)
    return Head((weight / deviation[:, None]).T, bias)


def sum_rows(features: NDArray[np.float32], mean: Floats | None = None) -> Floats:
    """The sum of the features [n, d] over n; with a mean [d], that of the squared differences. Row after row."""
    total = np.zeros(features.shape[1])
    for start in range(0, len(features), AT_ONCE):
        part = features[start : start + AT_ONCE].astype(np.float64)
        for row in part if mean is None else (part - mean) ** 2:
            total += row
    return total


def solve_symmetric(matrix: Floats, right: Floats) -> Floats:
    """X with matrix · X = right: a positive definite matrix [d, d], right [d, k]. Both arguments are overwritten.

    Gaussian elimination, which needs no pivots for such a matrix. Every product and every difference is an operation on
    single elements, in a fixed order: LAPACK's bits depend on the CPU and the threads.
    """
    size = len(matrix)
    for i in range(size):
        column = matrix[i, i + 1 :] / matrix[i, i]  # by symmetry that below the diagonal, which is not computed
        for start in range(0, len(column), STRIP):
            strip = slice(i + 1 + start, i + 1 + start + STRIP)
            matrix[strip, i + 1 + start :] -= np.multiply.outer(
                column[start : start + STRIP], matrix[i, i + 1 + start :]
            )
        right[i + 1 :] -= np.multiply.outer(column, right[i])
    for i in reversed(range(size)):
        right[i] /= matrix[i, i]
        right[:i] -= np.multiply.outer(matrix[:i, i], right[i])
    return right
