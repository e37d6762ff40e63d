"""The loss of training, against its formula in float64."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

from pipeline.base.errors import UserError
from pipeline.config import params
from pipeline.engine.choices import CLASS_WEIGHTS
from pipeline.engine.loss import balanced_weights
from pipeline.engine.precision import Native
from pipeline.engine.world import World
from pipeline.training import state
from pipeline.training.notes import notes
from tests.conftest import on_cpu, read_params

COUNTS = {"common": 30, "rare": 2, "some": 8}
SMOOTHING = 0.1
LABELS = torch.tensor([0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 2, 0])  # microbatches of 2, 3 or 4 differ in their classes


def some_logits() -> Tensor:
    return 3 * torch.randn(12, 3, generator=torch.Generator().manual_seed(0))


def formula(logits: Tensor, labels: Tensor) -> float:
    """The mean of weight × smoothed cross entropy, image by image, in float64."""
    weights, total = [40 / (3 * 30), 40 / (3 * 2), 40 / (3 * 8)], 0.0
    for row, label in zip(logits.double().numpy(), labels.tolist(), strict=True):
        log_probs = row - np.log(np.exp(row).sum())
        target = np.full(3, SMOOTHING / 3) + (1 - SMOOTHING) * np.eye(3)[label]
        total -= weights[label] * (target * log_probs).sum()
    return float(total / len(labels))


def test_the_weights_are_those_of_scikit_learn() -> None:
    """class_weight="balanced"; the mean weight of an image is 1."""
    labels = np.repeat(np.arange(3), list(COUNTS.values()))
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert balanced_weights(COUNTS) == pytest.approx(expected.tolist(), rel=1e-12)
    assert expected[labels].mean() == pytest.approx(1)
    assert balanced_weights({"a": 7, "b": 7}) == [1, 1]


def test_a_class_without_a_training_image_is_refused() -> None:
    """No weight could make up for it."""
    with pytest.raises(UserError, match=r"train\.class_weights: 'balanced': the class 'b' has no training image"):
        balanced_weights({"a": 7, "b": 0})


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 6])
def test_the_loss_does_not_depend_on_the_number_of_parts(parts: int) -> None:
    """The mean over equal parts of a batch is the formula over the batch. With torch's weights it is not."""
    criterion, logits = CLASS_WEIGHTS["balanced"](COUNTS, SMOOTHING), some_logits()

    def mean_of_parts(loss: nn.Module) -> float:
        pieces = zip(logits.chunk(parts), LABELS.chunk(parts), strict=True)
        return float(torch.stack([loss(*piece) for piece in pieces]).double().mean())

    assert mean_of_parts(criterion) == pytest.approx(formula(logits, LABELS), rel=1e-6)
    of_torch = nn.CrossEntropyLoss(torch.tensor(balanced_weights(COUNTS)))
    whole = float(of_torch(logits, LABELS))
    assert parts == 1 or mean_of_parts(of_torch) != pytest.approx(whole, rel=0.01)


@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
def test_the_loss_of_mixed_targets_is_the_mixed_loss(lam: float) -> None:
    """Each of the two labels has its own weight."""
    criterion, logits, partners = CLASS_WEIGHTS["balanced"](COUNTS, SMOOTHING), some_logits(), LABELS.flip(0)
    targets = lam * nn.functional.one_hot(LABELS, 3) + (1 - lam) * nn.functional.one_hot(partners, 3)
    mixed = lam * formula(logits, LABELS) + (1 - lam) * formula(logits, partners)
    assert float(criterion(logits, targets)) == pytest.approx(mixed, rel=1e-6)


def test_the_true_class_is_the_best_answer_whatever_its_weight() -> None:
    """With strong smoothing and a class that weighs 15 times as much. The smoothing of torch fails here."""

    def best_answer(loss: nn.Module) -> int:
        logits = torch.zeros(1, 3, requires_grad=True)
        optimizer = torch.optim.SGD([logits], lr=0.3)
        for _ in range(300):
            optimizer.zero_grad()
            loss(logits, torch.tensor([0])).backward()
            optimizer.step()
        return int(logits.argmax())

    assert best_answer(CLASS_WEIGHTS["balanced"](COUNTS, 0.3)) == 0
    weights = torch.tensor(balanced_weights(COUNTS))
    assert best_answer(nn.CrossEntropyLoss(weights, label_smoothing=0.3)) == 1


def test_equal_counts_give_the_loss_without_weights() -> None:
    """It is torch's cross entropy, label smoothing included, for labels and for probabilities."""
    ours, plain = (CLASS_WEIGHTS[name]({"a": 4, "b": 4, "c": 4}, SMOOTHING) for name in ("balanced", "none"))
    logits, mixed = some_logits(), torch.rand(12, 3, generator=torch.Generator().manual_seed(1)).softmax(1)
    for targets in (LABELS, mixed):
        assert float(ours(logits, targets)) == pytest.approx(float(plain(logits, targets)), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_weighted_loss_is_computed_in_fp32_under_autocast(dtype: torch.dtype) -> None:
    """Logits may be of half precision; the loss is not."""
    criterion, logits = CLASS_WEIGHTS["balanced"](COUNTS, SMOOTHING), some_logits().to(dtype)
    with Native.of("cpu", dtype).autocast():
        loss = criterion(logits, LABELS)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(formula(logits, LABELS), rel=1e-6)


def test_the_counts_of_the_training_split_arrive_in_the_loss() -> None:
    """A learner has the weights, the training says them, and without the setting there are none."""
    config = params.parse(on_cpu(read_params(), train__class_weights="balanced", train__label_smoothing=SMOOTHING))
    learner = state.make_learner(config, COUNTS, World(0, 0, 1, torch.device("cpu")))
    logits = some_logits()
    assert float(learner.criterion(logits, LABELS)) == pytest.approx(formula(logits, LABELS), rel=1e-6)
    assert list(notes(config.train, COUNTS)) == [
        "train.class_weights: 'balanced': weights from 0.444 ('common', 30 images) to 6.67 ('rare', 2 images) "
        "in the training loss"
    ]
    plain = config.train.model_copy(update={"class_weights": "none"})
    assert list(notes(plain, COUNTS)) == []
