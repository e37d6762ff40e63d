"""One temperature for a model, so that its probabilities can be believed [Guo et al. 2017]."""

import numpy as np
from numpy.typing import NDArray

from pipeline.base import elementary

OCTAVE, OCTAVES = 32, 10  # factors that are tried: 2**(k / OCTAVE), over so many octaves in both directions

Floats = NDArray[np.float64]


def factor(logits: Floats, labels: NDArray[np.int64]) -> float:
    """The factor of the logits [n, K] that fits the probabilities to the labels [n]: 1 / temperature.

    It has the least cross entropy of all factors that are tried. As in [Platt 1999], a target is not quite 1, but
    (n + 1) / (n + 2): of a few images that are all right, no probability becomes 1. The cross entropy is convex in the
    factor, so the least one is found by halving the range.
    """
    count, classes = logits.shape
    targets = np.full((count, classes), 1 / (count + 2) / max(classes - 1, 1))
    targets[np.arange(count), labels] = (count + 1) / (count + 2)

    def loss(step: int) -> float:
        return float(-(targets * elementary.log_softmax(logits * _factor(step))).sum())

    low, high = -OCTAVE * OCTAVES, OCTAVE * OCTAVES
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if loss(middle) <= loss(middle + 1) else (middle + 1, high)
    return _factor(low)


def _factor(step: int) -> float:
    return float(2.0 ** (step / OCTAVE))


def figures(logits: Floats, labels: NDArray[np.int64]) -> tuple[float, float]:
    """The mean loss and the accuracy of logits [n, K] with labels [n]."""
    log_probs = elementary.log_softmax(logits)
    loss = -log_probs[np.arange(len(labels)), labels].sum() / len(labels)
    return float(loss), int((log_probs.argmax(1) == labels).sum()) / len(labels)
