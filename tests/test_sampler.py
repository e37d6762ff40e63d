"""The order of images is a function of (seed, step), the same for every number of processes."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.speed import ours
from pipeline.config import params
from pipeline.loader import sampler
from pipeline.loader.batches import Plan, plans
from pipeline.loader.sampler import Share


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 60), epochs=st.integers(1, 5), data=st.data())
def test_every_row_comes_once_an_epoch(seed: int, rows: int, epochs: int, data: st.DataObject) -> None:
    """The batches are the permutations of the epochs, put together; only a last short batch is cut.

    No two epochs end with the same step, and the last one ends with the last step.
    """
    batch = data.draw(st.integers(1, rows))
    steps = sampler.steps(epochs, rows, batch)
    stream = np.concatenate([sampler.batch_rows(seed, step, batch, rows) for step in range(steps)])
    assert len(stream) == steps * batch
    assert epochs * rows - len(stream) < batch
    for epoch in range(epochs):
        part = stream[epoch * rows : (epoch + 1) * rows]
        assert max(Counter(part.tolist()).values()) == 1
    whole = stream[: len(stream) // rows * rows].reshape(-1, rows)
    assert (np.sort(whole, axis=1) == np.arange(rows)).all()
    ends = [sampler.epoch_end(epoch, rows, batch) for epoch in range(epochs)]
    assert [0, *ends] == sorted({0, *ends})
    assert ends[-1] == steps


def arrays(plan: Plan) -> list[NDArray[Any]]:
    """The arrays of a plan."""
    of, mix = plan.params, plan.mix
    draws = [of.boxes, of.flips, of.factors, of.erasures, mix.images, mix.partners]
    return [plan.images()[1].numpy(), plan.labels, *draws]


@pytest.mark.parametrize("first", [0, 5])
def test_steps_that_are_planned_together_have_the_plans_of_each_alone(first: int) -> None:
    """With every augmentation, sides that rise within eight steps, and a share of the batch."""
    every = {"erasing": 0.5, "color_jitter": 0.4, "mixup": 0.2, "cutmix": 1.0, "crop_from": 32, "crop": 64}
    settings = params.load().train.model_copy(update={"batch_size": 12, "epochs": 6, **every})
    dataset = ours.noise(50, 16, 5, torch.device("cpu"))
    share = Share(range(1, 2), 3)
    alone, together = (list(plans(dataset, settings, share, first, at_once)) for at_once in (1, 8))
    assert [plan.step for plan in together] == list(range(first, 25))
    assert {plan.side for plan in together} == {32, 64}
    for one, other in zip(alone, together, strict=True):
        assert (one.step, one.side, one.mix.lam, one.mix.box) == (other.step, other.side, other.mix.lam, other.mix.box)
        for left, right in zip(*map(arrays, (one, other)), strict=True):
            assert (left.dtype, left.tobytes()) == (right.dtype, right.tobytes())


def test_every_epoch_and_every_seed_has_an_order_of_its_own() -> None:
    """No two of 60 are equal, and nobody can write into one. A process takes the parts that are its own."""
    orders = [sampler.order(seed, epoch, 50) for seed in range(3) for epoch in range(20)]
    assert len({one.tobytes() for one in orders}) == len(orders)
    stream = [sampler.batch_rows(seed, step, 50, 50) for seed in range(3) for step in range(20)]
    assert np.stack(stream).tobytes() == np.stack(orders).tobytes()
    with pytest.raises(ValueError, match="read-only"):
        orders[0][0] = 1
    assert Share(range(2, 5), 6).take(np.arange(12)).tolist() == [4, 5, 6, 7, 8, 9]
