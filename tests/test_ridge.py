"""The head that is solved equals scikit-learn's ridge regression; its temperature is the best one."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from pipeline.base import elementary
from pipeline.learning import ridge, temperature

L2 = 0.5


def drawn(images: int, size: int = 30, classes: int = 4) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features of very different scales with a constant one, and labels that depend on them."""
    random = np.random.default_rng(images)
    features = random.gamma(2, size=(images, size)) * 10.0 ** (np.arange(size) % 7 - 3)
    features[:, 3] = 7
    labels = (features[:, :classes] / features[:, :classes].mean(0)).argmax(1)
    return features.astype(np.float32), labels.astype(np.int64)


@pytest.mark.parametrize("images", [1, 2, 9, 200, 2 * ridge.AT_ONCE + 1])
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0, 1.0), (0.2, 3.0, 1.0, 0.7)])
def test_it_is_ridge_regression(images: int, weights: tuple[float, ...]) -> None:
    """For fewer and more images than features, with weights of classes, with a constant feature, without a class.

    Rounding the standardized features to 1/256 moves a logit by less than 0.01.
    """
    features, labels = drawn(images)
    scaler = StandardScaler().fit(features.astype(np.float64))
    oracle = Ridge(alpha=L2 * features.shape[1])
    oracle.fit(scaler.transform(features.astype(np.float64)), np.eye(4)[labels], np.array(weights)[labels])
    other, _ = drawn(50)
    actual = ridge.solve(features, labels, np.array(weights), L2).logits(other)
    assert np.abs(actual - oracle.predict(scaler.transform(other.astype(np.float64)))).max() < 0.01


def test_the_equations_are_solved() -> None:
    """For a matrix of more rows than are updated together, as LAPACK solves it."""
    random = np.random.default_rng(0)
    root, right = random.normal(size=(300, 300)), random.normal(size=(300, 5))
    matrix = root.T @ root + np.eye(300)
    expected = np.linalg.solve(matrix, right)
    assert np.allclose(ridge.solve_symmetric(matrix.copy(), right.copy()), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_the_temperature_is_the_best_one(scale: float) -> None:
    """As SciPy finds it, up to half a step of the range; the classes of the answers stay."""
    features, labels = drawn(400)
    noisy = np.where(np.arange(400) % 9 == 0, (labels + 1) % 4, labels)
    head = ridge.solve(features, labels, np.ones(4), L2).sharper(scale)
    logits = head.logits(features)
    factor = temperature.factor(logits, noisy)
    targets = np.full((400, 4), 1 / 402 / 3)
    targets[np.arange(400), noisy] = 401 / 402

    def loss(octave: float) -> float:
        return float(-(targets * elementary.log_softmax(logits * 2**octave)).sum())

    best = minimize_scalar(loss, bounds=(-10, 10), method="bounded").x
    assert abs(np.log2(factor) - best) <= 0.51 / temperature.OCTAVE
    assert (head.sharper(factor).logits(features).argmax(1) == logits.argmax(1)).all()


def test_few_images_that_are_all_right_make_no_probability_one() -> None:
    """With three validation images no answer is surer than four of five."""
    log_probs = elementary.log_softmax(np.eye(3) * temperature.factor(np.eye(3), np.arange(3)))
    assert np.exp(log_probs.max(1)) == pytest.approx([0.8] * 3, abs=0.01)
