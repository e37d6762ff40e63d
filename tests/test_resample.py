"""Resampling is exact, and what Pillow does."""

from fractions import Fraction
from itertools import accumulate

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from pipeline.dataset.normalization import IMAGENET
from pipeline.loader import center, resample
from pipeline.loader.resample import Crops
from tests.helpers.crops import AS_IT_IS, NORMALIZED, cropped, dense, drawn_crops, exact, random_boxes, random_images


def no_flips(n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.bool)


def pixels(normalized: Tensor) -> Tensor:
    """Crops back in units of a pixel, 0 to 255."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET.mean, IMAGENET.std))
    return (normalized * std + mean) * 255


# Compiling takes seconds for each pair of sizes: smaller, enlarged, and odd. test_kernels.py has further ones.
@pytest.mark.parametrize(("side", "out"), [(256, 224), (40, 96), (33, 17)])
def test_no_rounding_is_left_to_an_order(side: int, out: int) -> None:
    """The loop has the bits of sums in float64, taken in another order; boxes of every kind."""
    images, crops = random_images(5, side), drawn_crops(20, 5, side, out, seed=side)
    for normalization in (AS_IT_IS, NORMALIZED):
        assert torch.equal(resample.resample(images, crops, *normalization), exact(images, crops, *normalization))


@hypothesis.settings(max_examples=50)
@given(side=st.integers(16, 300), out=st.integers(16, 300), data=st.data())
def test_weights_are_those_of_a_triangle(side: int, out: int, data: st.DataObject) -> None:
    """In exact fractions: a triangle as wide as two output pixels (two input pixels where the box is enlarged) around
    an output pixel's centre. The weights are multiples of 1/256 of pixels inside, and sum to 1; their running sum is
    within half a unit of the triangle's."""
    start = data.draw(st.integers(0, (side - 1) * center.GRID))
    end = data.draw(st.integers(start + center.GRID, side * center.GRID))
    triangle = resample.triangle(torch.tensor([start]), torch.tensor([end]), side, out)
    units = triangle.weights * 256
    assert torch.equal(units, units.round().clamp(min=0))
    assert (units.sum(1) == 256).all()
    assert triangle.first.min() >= 0
    assert triangle.first.max() + units.shape[1] <= side
    scale = Fraction(end - start, center.GRID * out)  # input pixels an output pixel
    weights = dense(triangle, side)[0]
    for pixel in (0, out // 2, out - 1):
        centre, radius = Fraction(start, center.GRID) + (pixel + Fraction(1, 2)) * scale, max(scale, Fraction(1))
        heights = [max(Fraction(0), 1 - abs(k + Fraction(1, 2) - centre) / radius) for k in range(side)]
        sums = zip(accumulate(map(Fraction, weights[pixel].tolist())), accumulate(heights), strict=True)
        assert all(abs(ours - exact / sum(heights)) <= Fraction(1, 512) for ours, exact in sums)


def test_the_whole_square_at_its_own_size_is_the_square() -> None:
    """Resampling nothing changes nothing; mirroring mirrors."""
    images = random_images(2, 40)
    boxes = torch.tensor([[0, 0, 40 * 256, 40 * 256]] * 2)
    crops = pixels(cropped(images, boxes, torch.tensor([False, True]), 40)).round()
    assert torch.equal(crops[0], images[0].permute(2, 0, 1).float())
    assert torch.equal(crops[1], images[1].permute(2, 0, 1).flip(2).float())


@pytest.mark.parametrize("out", [32, 100])
def test_it_is_pillows_box_resize(out: int) -> None:
    """For any box, Pillow's resize(BILINEAR, box=…) gives the same pixels up to the rounding of its two passes."""
    images, boxes = random_images(8, 64), random_boxes(8, 64)
    ours = pixels(cropped(images, boxes, no_flips(8), out))
    for image, box, crop in zip(images.numpy(), boxes.tolist(), ours, strict=True):
        corners = tuple(corner / center.GRID for corner in box)
        theirs = Image.fromarray(image).resize((out, out), Image.Resampling.BILINEAR, box=corners)
        difference = (torch.from_numpy(np.asarray(theirs).copy()).permute(2, 0, 1) - crop).abs()
        assert difference.max() <= 2.5
        assert difference.mean() <= 0.5


@given(st.integers(0, 2**32), st.integers(16, 40), st.integers(16, 48), st.integers(16, 48))
def test_numpy_cuts_the_same_pixels_for_one_image(seed: int, side: int, crop: int, resize: int) -> None:
    """The centre crop without torch has the bits of exact arithmetic, of any shape, smaller or enlarged."""
    random = np.random.default_rng(seed)
    image, size = random.integers(0, 256, (1, side, side, 3), np.uint8), random.integers(1, 500, (1, 2), np.int32)
    boxes = center.eval_boxes(size, side, max(crop, resize), crop)
    crops = Crops(torch.zeros(1, dtype=torch.int64), torch.from_numpy(boxes), torch.zeros(1, dtype=torch.bool), crop)
    expected = exact(torch.from_numpy(image), crops, *AS_IT_IS)[0]
    assert np.array_equal(center.cut(image[0], boxes[0], crop), expected.numpy())
