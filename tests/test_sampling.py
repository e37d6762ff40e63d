"""Order and crops are pure functions of (seed, step), the same for every number of processes."""

from collections import Counter

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import RandomResizedCrop

from pipeline import sampling

SIZES = st.lists(st.tuples(st.integers(8, 2000), st.integers(8, 2000)), min_size=1, max_size=24)


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 60), epochs=st.integers(1, 5), data=st.data())
def test_every_row_comes_once_an_epoch(seed: int, rows: int, epochs: int, data: st.DataObject) -> None:
    """The batches, put together, are the permutations of the epochs, put together; only a last short batch is cut."""
    batch = data.draw(st.integers(1, rows))
    steps = sampling.steps(epochs, rows, batch)
    stream = np.concatenate([sampling.batch_rows(seed, step, batch, rows) for step in range(steps)])
    assert len(stream) == steps * batch
    assert epochs * rows - len(stream) < batch
    for epoch in range(epochs):
        part = stream[epoch * rows : (epoch + 1) * rows]
        assert max(Counter(part.tolist()).values()) == 1
    whole = stream[: len(stream) // rows * rows].reshape(-1, rows)
    assert (np.sort(whole, axis=1) == np.arange(rows)).all()


@given(rows=st.integers(1, 100), epochs=st.integers(1, 6), data=st.data())
def test_every_epoch_ends_with_a_step_of_its_own(rows: int, epochs: int, data: st.DataObject) -> None:
    """With batches up to an epoch's size, no two epochs end with the same step; the last ends with the last step."""
    batch = data.draw(st.integers(1, rows))
    ends = [sampling.epoch_end(epoch, rows, batch) for epoch in range(epochs)]
    assert sorted(set(ends)) == ends
    assert ends[0] >= 1
    assert ends[-1] == sampling.steps(epochs, rows, batch)


@given(seed=st.integers(0, 2**32 - 1), step=st.integers(0, 10**6), size=st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_the_slices_of_any_world_size_merge_to_the_same_stream(seed: int, step: int, size: int) -> None:
    """Rows, boxes and flips of all ranks, put together, are those of one process, byte for byte."""
    rows = sampling.batch_rows(seed, step, 12, 97)
    sizes = np.stack([100 + rows, 300 - rows], 1).astype(np.int32)
    boxes, flips = sampling.crop_boxes(seed, step, sizes, 64, (0.08, 1.0), (0.75, 4 / 3), 0.5)
    for whole in (rows, boxes, flips):
        merged = np.concatenate([sampling.part(whole, rank, size) for rank in range(size)])
        assert merged.tobytes() == whole.tobytes()


@given(seed=st.integers(0, 2**32 - 1), step=st.integers(0, 10**6), sizes=SIZES, square=st.integers(16, 512))
def test_boxes_stay_inside(seed: int, step: int, sizes: list[tuple[int, int]], square: int) -> None:
    """A training crop lies in the square and covers at least one of its pixels, whatever the picture's shape."""
    boxes, flips = sampling.crop_boxes(seed, step, np.array(sizes, np.int32), square, (0.08, 1.0), (0.75, 4 / 3), 0.5)
    assert boxes.shape == (len(sizes), 4)
    assert flips.shape == (len(sizes),)
    assert (boxes >= 0).all()
    assert (boxes <= square * sampling.GRID).all()
    assert (boxes[:, 2:] - boxes[:, :2] >= sampling.GRID).all()


@given(sizes=SIZES, square=st.integers(16, 512), resize=st.integers(16, 512), data=st.data())
def test_evaluation_boxes_are_central_squares(
    sizes: list[tuple[int, int]], square: int, resize: int, data: st.DataObject
) -> None:
    """An evaluation box is central and, seen in the original picture, a square of crop / resize of the short side."""
    crop = data.draw(st.integers(16, resize)) if resize > 16 else 16
    shape = np.array(sizes, np.int32)
    boxes = sampling.eval_boxes(shape, square, resize, crop)
    assert (boxes >= 0).all()
    assert (boxes <= square * sampling.GRID).all()
    extent = boxes[:, 2:] - boxes[:, :2]
    assert (abs(boxes[:, :2] + boxes[:, 2:] - square * sampling.GRID) <= sampling.GRID).all()
    expected = shape.min(1, keepdims=True) * crop / resize / shape * square * sampling.GRID
    assert (abs(extent - np.maximum(expected, sampling.GRID)) <= 1).all()


def test_crops_are_drawn_as_torchvision_draws_them() -> None:
    """Over many draws the areas and the ratios are distributed as those of torchvision's RandomResizedCrop."""
    torch.manual_seed(0)
    draw, picture = RandomResizedCrop(224), torch.zeros(3, 240, 320)
    theirs = [draw.make_params([picture]) for _ in range(3000)]
    area = np.array([p["width"] * p["height"] / (240 * 320) for p in theirs])
    ratio = np.log([p["width"] / p["height"] for p in theirs])
    boxes, _ = sampling.crop_boxes(
        0, 0, np.tile(np.array([320, 240], np.int32), (3000, 1)), 256, (0.08, 1), (3 / 4, 4 / 3), 0.5
    )
    extent = (boxes[:, 2:] - boxes[:, :2]) / (256 * sampling.GRID)
    ours = np.log(extent[:, 0] * 320 / (extent[:, 1] * 240))
    assert abs(extent.prod(1).mean() - area.mean()) < 0.03
    assert abs(ours.mean() - ratio.mean()) < 0.03
    assert abs(extent.prod(1).std() - area.std()) < 0.03


def test_the_draws_are_these() -> None:
    """The streams themselves: a change here changes every result, so it must be meant."""
    assert sampling.batch_rows(0, 0, 6, 10).tolist() == [9, 4, 2, 1, 0, 7]
    boxes, flips = sampling.crop_boxes(
        0, 1, np.array([[320, 240], [240, 320]], np.int32), 256, (0.08, 1.0), (0.75, 4 / 3), 0.5
    )
    assert boxes.tolist() == [[8134, 314, 56584, 56435], [1244, 34045, 40132, 59006]]
    assert flips.tolist() == [False, True]
