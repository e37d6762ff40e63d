"""The learning rate is a pure function of the step."""

import math
from typing import Any

import pytest

from pipeline.config import params
from pipeline.learning import schedule
from pipeline.learning.schedule import Schedule, best_epoch, should_stop
from pipeline.running.notes import notes
from tests.conftest import change, on_cpu, read_params


def test_the_cosine_begins_after_the_warm_up() -> None:
    """Of 12 steps, 4 warm up; then half a cosine from 1 over the other 8: half-way in step 8, a quarter in step 6.

    A constant schedule stays after its warm-up. A training may be all warm-up: nothing is divided by zero.
    """
    rates = [Schedule("cosine", 12, 4, 0.2).lr_factor(step) for step in (3, 4, 6, 8, 10, 12)]
    quarter = (1 + math.sqrt(0.5)) / 2
    assert rates == pytest.approx([1, 1, 0.2 + 0.8 * quarter, 0.6, 0.2 + 0.8 * (1 - quarter), 0.2])
    assert [Schedule("constant", 6, 4, 0.0).lr_factor(step) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert [Schedule("cosine", 3, 3, 0.0).lr_factor(step) for step in range(4)] == pytest.approx([1 / 3, 2 / 3, 1, 1])


@pytest.mark.parametrize(
    ("epochs", "wish", "steps"),
    [(1, 2.0, 5), (2, 2.0, 10), (3, 2.0, 15), (4, 2.0, 20), (30, 2.0, 20), (1, 0.0, 0),
     (2, 0.26, 3), (2, 0.24, 2), (2, 0.49, 5), (2, 0.12, 1), (2, 0.04, 0)],
)  # fmt: skip
def test_the_warm_up_takes_at_most_half_of_the_training(epochs: int, wish: float, steps: int) -> None:
    """At ten steps per epoch, rounded. A longer one is cut to half, and said in one sentence."""
    raw = on_cpu(read_params(), train__epochs=epochs, train__warmup_epochs=wish, train__schedule="constant")
    settings = params.parse(raw).train
    rates = schedule.learning_rates(settings, rows=80)
    assert rates.index(max(rates)) == max(0, steps - 1)
    sentences = list(notes(settings, {"a": 1, "b": 1}))
    assert len(sentences) == (epochs / 2 < wish)
    solved = settings.model_copy(update={"head": "solved", "freeze_backbone": True})
    assert list(notes(solved, {"a": 1, "b": 1})) == []  # a head that is solved has no epochs
    assert all(
        line.startswith(f"note: train.warmup_epochs: {wish:g} ") and f"{steps / 10:g}" in line for line in sentences
    )


@pytest.mark.parametrize(
    ("changes", "factors"),
    [
        ({"schedule": "step", "step_epochs": 2, "step_factor": 0.1}, [1] * 5 + [0.1] * 5),
        ({"schedule": "cosine", "final_lr": 0.5}, [0.75 + 0.25 * math.cos(math.pi * step / 10) for step in range(10)]),
        ({"schedule": "constant", "reference_batch": 32}, [0.25] * 10),
    ],
    ids=lambda value: value["schedule"] if isinstance(value, dict) else "",
)
def test_the_settings_arrive_in_the_rates(changes: dict[str, Any], factors: list[float]) -> None:
    """Four epochs of 2.5 batches of 8: a drop after two epochs, the end of a cosine, a rate that is for 32 images."""
    raw = on_cpu(read_params(), train__epochs=4, train__lr=2.0, **{f"train__{key}": changes[key] for key in changes})
    rates = schedule.learning_rates(params.parse(raw).train, rows=20)
    assert rates == pytest.approx([2 * factor for factor in factors])


def rows(*accuracies: float) -> list[dict[str, float]]:
    return [{"val_accuracy": accuracy, "val_loss": 1.0} for accuracy in accuracies]


def test_a_training_ends_after_so_many_epochs_without_a_better_one() -> None:
    """The first of equal epochs is the best one. An epoch without a finite validation loss never is."""
    assert [should_stop(rows(0.5, 0.6, 0.6, 0.5, 0.6)[:epochs], 3) for epochs in range(6)] == [False] * 5 + [True]
    assert best_epoch(rows(0.5, 0.6, 0.6)) == 2
    assert not should_stop(rows(*[0.5] * 99), 0)
    history = rows(0.5, 0.9, 0.4, 0.9)
    history[1]["val_loss"], history[3]["val_loss"] = math.nan, math.inf
    assert [best_epoch(history[:epochs]) for epochs in range(5)] == [0, 1, 1, 1, 1]
    assert [should_stop(history[:epochs], 2) for epochs in range(5)] == [False, False, False, True, True]
    assert best_epoch(history[1:2]) == 0
    assert should_stop([history[1]] * 2, 2)


@pytest.mark.parametrize(("at_end", "anywhere", "ages"), [(10, 300, (10, 300)), (0, 300, (0, 300)), (10, 5, (5, 5))])
def test_a_checkpoint_is_saved_when_the_last_is_old_enough(at_end: int, anywhere: int, ages: tuple[int, int]) -> None:
    """Earlier at the end of an epoch than in the middle of it, never later."""
    changes = {"run__epoch_checkpoint_seconds": at_end, "run__checkpoint_seconds": anywhere}
    run = params.parse(change(on_cpu(read_params()), **changes)).run
    assert tuple(schedule.checkpoint_age(run, at_epoch_end=is_end) for is_end in (True, False)) == ages
