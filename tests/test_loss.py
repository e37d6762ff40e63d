"""The losses of training, against their formulas in float64."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

from pipeline.config import params
from pipeline.learning import state
from pipeline.learning.choices import CLASS_WEIGHTS, LOSSES
from pipeline.learning.loss import WeightedLoss, balanced_weights, criterion, cross_entropies, focal_losses
from pipeline.learning.precision import Native
from pipeline.running.notes import notes
from tests.conftest import on_cpu, read_params
from tests.helpers.trainings import ALONE

COUNTS = {"common": 30, "rare": 2, "some": 8}
SMOOTHING = 0.1
LABELS = torch.tensor([0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 2, 0])  # microbatches of 2, 3 or 4 differ in their classes


def some_logits() -> Tensor:
    return 3 * torch.randn(12, 3, generator=torch.Generator().manual_seed(0))


# name of train.loss → (probability that the model gives to a class) → the loss if it is the class of the image
FORMULAS: dict[str, Callable[[float], float]] = {
    "cross_entropy": lambda p: -np.log(p),
    "focal": lambda p: -((1 - p) ** 2) * np.log(p),  # Lin et al. 2017, equation 4, with gamma 2
}
WEIGHTS = {"none": [1.0, 1.0, 1.0], "balanced": [40 / (3 * 30), 40 / (3 * 2), 40 / (3 * 8)]}


def training_loss(loss: str, class_weights: str = "balanced") -> nn.Module:
    return criterion(LOSSES[loss], CLASS_WEIGHTS[class_weights](COUNTS), SMOOTHING)


def formula(loss: str, logits: Tensor, labels: Tensor, class_weights: str = "balanced") -> float:
    """The mean of weight × smoothed loss, image by image, in float64."""
    total = 0.0
    for row, label in zip(logits.double().numpy(), labels.tolist(), strict=True):
        probs = np.exp(row) / np.exp(row).sum()
        losses = [FORMULAS[loss](p) for p in probs]
        smoothed = (1 - SMOOTHING) * losses[label] + SMOOTHING * np.mean(losses)
        total += WEIGHTS[class_weights][label] * smoothed
    return float(total / len(labels))


def test_the_weights_are_those_of_scikit_learn() -> None:
    """The mean weight of an image is 1. With equal counts, cross entropy is torch's own, and WeightedLoss agrees."""
    labels = np.repeat(np.arange(3), list(COUNTS.values()))
    weights = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert balanced_weights(COUNTS) == pytest.approx(weights.tolist(), rel=1e-12)
    assert weights[labels].mean() == pytest.approx(1)
    equal = CLASS_WEIGHTS["balanced"]({"a": 4, "b": 4, "c": 4})
    plain, ours = criterion(cross_entropies, equal, SMOOTHING), WeightedLoss(cross_entropies, equal, SMOOTHING)
    assert isinstance(plain, nn.CrossEntropyLoss)
    for targets in (LABELS, torch.rand(12, 3, generator=torch.Generator().manual_seed(1)).softmax(1)):
        assert float(ours(some_logits(), targets)) == pytest.approx(float(plain(some_logits(), targets)), rel=1e-6)


@pytest.mark.parametrize("class_weights", CLASS_WEIGHTS)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_does_not_depend_on_the_number_of_parts(loss: str, class_weights: str) -> None:
    """The mean over equal parts of a batch is the formula over the batch."""
    of_training, logits = training_loss(loss, class_weights), some_logits()
    for parts in (1, 2, 3, 4, 6):
        pieces = zip(logits.chunk(parts), LABELS.chunk(parts), strict=True)
        mean = float(torch.stack([of_training(*piece) for piece in pieces]).double().mean())
        assert mean == pytest.approx(formula(loss, logits, LABELS, class_weights), rel=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_of_mixed_targets_is_the_mixed_loss(loss: str) -> None:
    """Each of the two labels has its own weight."""
    of_training, logits, partners = training_loss(loss), some_logits(), LABELS.flip(0)
    for lam in (0.0, 0.3, 1.0):
        targets = lam * nn.functional.one_hot(LABELS, 3) + (1 - lam) * nn.functional.one_hot(partners, 3)
        mixed = lam * formula(loss, logits, LABELS) + (1 - lam) * formula(loss, logits, partners)
        assert float(of_training(logits, targets)) == pytest.approx(mixed, rel=1e-6)


def test_an_image_that_is_recognized_counts_little_with_the_focal_loss() -> None:
    """Its loss and its gradient stay finite and fall to 0, also where its probability is exactly 1."""
    of_training = criterion(focal_losses, [1.0, 1.0], 0.0)
    logits = torch.tensor([[0.0, 0.0], [4.0, 0.0], [200.0, 0.0], [-200.0, 0.0]], requires_grad=True)
    losses = torch.stack([of_training(row[None], torch.tensor([0])) for row in logits])
    losses.sum().backward()
    assert logits.grad is not None
    assert losses.tolist() == pytest.approx([0.25 * np.log(2), 5.873e-6, 0, 200], rel=1e-3)
    assert logits.grad.abs().sum(1)[2:].tolist() == pytest.approx([0, 2])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_weighted_loss_is_computed_in_fp32_under_autocast(dtype: torch.dtype, loss: str) -> None:
    of_training, logits = training_loss(loss), some_logits().to(dtype)
    with Native.create("cpu", dtype).autocast():
        value = of_training(logits, LABELS)
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(formula(loss, logits, LABELS), rel=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_counts_of_the_training_split_arrive_in_the_loss(loss: str) -> None:
    """A learner has the loss and its weights, the training says them, and without the setting there are none."""
    changes = {"train__loss": loss, "train__class_weights": "balanced", "train__label_smoothing": SMOOTHING}
    config = params.parse(on_cpu(read_params(), **changes))
    learner = state.make_learner(config, state.make_model(config, tuple(COUNTS), ALONE), COUNTS, ALONE)
    logits = some_logits()
    assert float(learner.criterion(logits, LABELS)) == pytest.approx(formula(loss, logits, LABELS), rel=1e-6)
    (note,) = notes(config.train, COUNTS)
    assert re.findall(r"[\d.]+|'\w+'", note) == [".", "'balanced'", "0.444", "'common'", "30", "6.67", "'rare'", "2"]
    plain = config.train.model_copy(update={"class_weights": "none"})
    assert list(notes(plain, COUNTS)) == []
