"""The side of the training crops rises with the epochs: a pure function of the step, for every number of processes."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import params, resolution
from pipeline.config.params import Train
from pipeline.learning.schedule import finished_epoch
from pipeline.loader import sampler
from tests.conftest import change, on_cpu, read_params


def train(**lines: Any) -> Train:
    return params.parse(change(on_cpu(read_params()), **{f"train__{key}": value for key, value in lines.items()})).train


def test_each_side_has_an_equal_share_of_the_epochs() -> None:
    """From 96 to 160 in 30 epochs: ten epochs each. One epoch has the full side. Without crop_from all have."""
    rising = train(crop=160, crop_from=96, epochs=30)
    assert resolution.sides(rising) == [96, 128, 160]
    assert resolution.sides_of_training(rising.model_copy(update={"epochs": 2})) == [128, 160]
    assert [resolution.side_of_epoch(rising, epoch) for epoch in range(30)] == [96] * 10 + [128] * 10 + [160] * 10
    assert {resolution.side_of_epoch(train(crop=160, epochs=9), epoch) for epoch in range(9)} == {160}


@given(epochs=st.integers(1, 200), first=st.integers(16, 64), more=st.integers(0, 640))
def test_the_side_never_falls_and_ends_at_crop(epochs: int, first: int, more: int) -> None:
    """Whatever the number of sides and epochs; with as many epochs as sides or more, every side occurs."""
    rising = train(crop=first + more, crop_from=first, epochs=epochs)
    sides = [resolution.side_of_epoch(rising, epoch) for epoch in range(epochs)]
    assert sides == sorted(sides)
    assert sides[-1] == rising.crop
    assert set(sides) <= set(resolution.sides(rising))
    assert epochs < len(resolution.sides(rising)) or set(sides) == set(resolution.sides(rising))


@given(rows=st.integers(1, 500), epochs=st.integers(1, 8), data=st.data())
def test_a_step_belongs_to_the_epoch_whose_row_of_the_history_counts_it(
    rows: int, epochs: int, data: st.DataObject
) -> None:
    """A step that ends an epoch is the last one of it, also if its batch has images of the next epoch."""
    batch, epoch = data.draw(st.integers(1, rows)), 0
    for step in range(sampler.steps(epochs, rows, batch)):
        assert sampler.epoch_of_step(step, rows, batch) == epoch
        epoch = finished_epoch(step + 1, rows, batch) or epoch
