"""The order of images is a function of (seed, step), the same for every number of processes."""

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

    Each epoch and each seed has its own permutation, into which nobody can write. No two epochs end with the same
    step, and the last one ends with the last step.
    """
    batch = data.draw(st.integers(1, rows))
    steps = sampler.steps(epochs, rows, batch)
    stream = np.concatenate([sampler.batch_rows(seed, step, batch, rows) for step in range(steps)])
    orders = [sampler.order(seed, epoch, rows) for epoch in range(epochs)]
    assert len(stream) == steps * batch
    assert epochs * rows - len(stream) < batch
    assert np.array_equal(stream, np.concatenate(orders)[: len(stream)])
    assert (np.sort(orders, axis=1) == np.arange(rows)).all()
    different = {one.tobytes() for one in (*orders, sampler.order(seed + 1, 0, rows))}
    assert rows < 20 or len(different) == epochs + 1  # few rows have few orders
    assert not orders[0].flags.writeable
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
