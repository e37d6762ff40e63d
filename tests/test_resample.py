"""Resampling is exact, the same in both forms, and what Pillow and torchvision do."""

import io
import tarfile
import tracemalloc
from fractions import Fraction
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from pipeline.loader import augment, center, random_params, resample
from pipeline.loader.random_params import CropRange
from pipeline.loader.resample import Crops


def random_images(n: int, side: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (n, side, side, 3), dtype=np.uint8))


def random_boxes(n: int, side: int, seed: int = 0) -> Tensor:
    sizes = np.random.default_rng(seed).integers(50, 500, (n, 2)).astype(np.int32)
    boxes, _ = random_params.crop_boxes(seed, 0, sizes, side, CropRange((0.08, 1.0), (3 / 4, 4 / 3), 0.5))
    return torch.from_numpy(boxes)


def drawn_crops(n: int, images: int, side: int, out: int, seed: int) -> Crops:
    """Boxes of any place and size of 1 pixel or more, some at the edges, some as large as the image; any rows."""
    random = np.random.default_rng(seed)
    whole = side * center.GRID
    start = random.integers(0, whole - center.GRID, (n, 2), endpoint=True)
    end = random.integers(start + center.GRID, whole, endpoint=True)
    start, end = np.where(random.random((n, 2)) < 0.2, 0, start), np.where(random.random((n, 2)) < 0.2, whole, end)
    boxes, rows, flips = np.concatenate([start, end], 1), random.integers(0, images, n), random.random(n) < 0.5
    return Crops(torch.from_numpy(rows), torch.from_numpy(boxes), torch.from_numpy(flips), out)


def no_flips(n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.bool)


def pixels(normalized: Tensor) -> Tensor:
    """Crops back in units of a pixel, 0 to 255."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (augment.MEAN, augment.STD))
    return (normalized * std + mean) * 255


AS_IT_IS = torch.zeros(3), torch.ones(3)
NORMALIZED = augment.normalization(torch.device("cpu"))
LAYOUTS = (torch.contiguous_format, torch.channels_last)


def filters_of(boxes: Tensor, flips: Tensor, side: int, out: int) -> tuple[resample.Filter, resample.Filter]:
    """Of the columns and of the lines."""
    columns = resample.triangle(boxes[:, 0], boxes[:, 2], side, out).mirrored(flips)
    return columns, resample.triangle(boxes[:, 1], boxes[:, 3], side, out)


def crops(images: Tensor, boxes: Tensor, flips: Tensor, out: int) -> Tensor:
    """`augment.crops` of all images."""
    return augment.crops(images, torch.arange(len(images)), boxes.numpy(), flips.numpy(), out)


@given(side=st.integers(16, 80), out=st.integers(16, 80), seed=st.integers(0, 10**6))
def test_no_rounding_is_left_to_an_order(side: int, out: int, seed: int) -> None:
    """Sums in float64, taken in another order, give the very bits of the float32 result."""
    images, boxes, flips = random_images(3, side, seed), random_boxes(3, side, seed), torch.tensor([True, False, True])
    filters = filters_of(boxes, flips, side, out)
    columns, lines = (resample._dense(one, side).double() for one in filters)
    across = torch.einsum("nyxc,nox->nyoc", images.double().flip(2), columns.flip(2))
    quarters = torch.round(across * 4) / 4  # half to even, as the float unit rounds
    both = torch.einsum("nyoc,npy->ncpo", quarters.flip(1), lines.flip(2)).float()
    assert torch.equal(resample.by_products(images, torch.arange(3), *filters, *AS_IT_IS), both)


# Compiling takes seconds for each pair of sizes: a few of every kind.
@pytest.mark.parametrize(("side", "out"), [(256, 224), (80, 64), (40, 96), (16, 16), (33, 17), (300, 20)])
def test_both_forms_have_the_same_bits(side: int, out: int) -> None:
    """Loops and products, for boxes that are shrunk and enlarged, at the edges, and mirrored; rows in any order."""
    images, rows, n = random_images(5, side), torch.tensor([4, 0, 0, 2, 3, 1, 4, 2]), 8
    boxes, flips = random_boxes(n, side), torch.arange(n) % 2 == 0
    boxes[-2:] = torch.tensor([[0, 0, side, side], [side * 255, side * 254, side * 256, side * 256]])
    filters, normalization = filters_of(boxes, flips, side, out), augment.normalization(torch.device("cpu"))
    loops = resample.by_loops(images, rows, *filters, *normalization)
    assert torch.equal(loops, resample.by_products(images, rows, *filters, *normalization))
    assert torch.equal(loops, resample.resample(images, resample.Crops(rows, boxes, flips, out), *normalization))


def test_a_crop_does_not_depend_on_its_neighbours_or_on_threads() -> None:
    """Alone or in a batch, with one thread or two: the same bits."""
    images, boxes = random_images(6, 64), random_boxes(6, 64)
    together = crops(images, boxes, no_flips(6), 48)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(before, 2))
        alone = [crops(images[k : k + 1], boxes[k : k + 1], no_flips(1), 48) for k in range(6)]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together, torch.cat(alone))


@given(side=st.integers(16, 300), out=st.integers(16, 300), data=st.data())
def test_the_filter_sums_to_one(side: int, out: int, data: st.DataObject) -> None:
    """Whatever the box, the weights of every output pixel are multiples of 1/256 of pixels inside, and sum to 1."""
    start = data.draw(st.integers(0, (side - 1) * center.GRID))
    end = data.draw(st.integers(start + center.GRID, side * center.GRID))
    found = resample.triangle(torch.tensor([start]), torch.tensor([end]), side, out)
    weights = found.weights * 256
    assert torch.equal(weights, weights.round())
    assert (weights >= 0).all()
    assert (weights.sum(1) == 256).all()
    assert found.first.min() >= 0
    assert found.first.max() + weights.shape[1] <= side


@given(side=st.integers(16, 40), out=st.integers(16, 40), data=st.data())
def test_weights_are_those_of_a_triangle(side: int, out: int, data: st.DataObject) -> None:
    """In exact fractions: a triangle as wide as two output pixels (two input pixels where the box is enlarged) around
    an output pixel's centre. The weights' running sum is within half a unit of 1/256 of the triangle's."""
    start = data.draw(st.integers(0, (side - 1) * center.GRID))
    end = data.draw(st.integers(start + center.GRID, side * center.GRID))
    found = resample.triangle(torch.tensor([start]), torch.tensor([end]), side, out)
    scale = Fraction(end - start, center.GRID * out)  # input pixels an output pixel
    for pixel in (0, out // 2, out - 1):
        centre, radius = Fraction(start, center.GRID) + (pixel + Fraction(1, 2)) * scale, max(scale, Fraction(1))
        heights = [max(Fraction(0), 1 - abs(k + Fraction(1, 2) - centre) / radius) for k in range(side)]
        weights = [Fraction(0)] * side
        first = int(found.first[0, pixel])
        for k, weight in enumerate(found.weights[0, :, pixel].tolist()):
            weights[first + k] = Fraction(weight)
        sums = zip(accumulate(weights), accumulate(heights), strict=True)
        assert all(abs(ours - exact / sum(heights)) <= Fraction(1, 512) for ours, exact in sums)


def test_the_whole_square_at_its_own_size_is_the_square() -> None:
    """Resampling nothing changes nothing; mirroring mirrors."""
    images = random_images(2, 40)
    boxes = torch.tensor([[0, 0, 40 * 256, 40 * 256]] * 2)
    made = pixels(crops(images, boxes, torch.tensor([False, True]), 40)).round()
    assert torch.equal(made[0], images[0].permute(2, 0, 1).float())
    assert torch.equal(made[1], images[1].permute(2, 0, 1).flip(2).float())


@pytest.mark.parametrize("out", [32, 64, 100])
def test_it_is_pillows_box_resize(out: int) -> None:
    """For any box, Pillow's resize(BILINEAR, box=…) gives the same pixels up to the rounding of its two passes."""
    images, boxes = random_images(8, 64), random_boxes(8, 64)
    ours = pixels(crops(images, boxes, no_flips(8), out))
    for image, box, crop in zip(images.numpy(), boxes.tolist(), ours, strict=True):
        placed = tuple(corner / center.GRID for corner in box)
        theirs = Image.fromarray(image).resize((out, out), Image.Resampling.BILINEAR, box=placed)
        difference = (torch.from_numpy(np.asarray(theirs).copy()).permute(2, 0, 1) - crop).abs()
        assert difference.max() <= 2.5
        assert difference.mean() <= 0.5


def test_real_photos_look_as_torchvision_makes_them(mini: Path) -> None:
    """On real photos the packed way is within a few grey levels of Resize + CenterCrop and of a RandomResizedCrop.

    What remains is the squeeze to a square before the crop; a shift by one pixel would differ far more.
    """
    with tarfile.open(mini) as archive:
        members = [m for m in archive.getmembers() if m.name.endswith(".jpg")][::25]
        photos = [Image.open(io.BytesIO(archive.extractfile(m).read())).convert("RGB") for m in members]  # type: ignore[union-attr]
    sizes = np.array([photo.size for photo in photos], np.int32)
    packed = torch.from_numpy(np.stack([np.asarray(p.resize((256, 256), Image.Resampling.BICUBIC)) for p in photos]))
    tensors = [F.pil_to_tensor(photo) for photo in photos]

    boxes = torch.from_numpy(center.eval_boxes(sizes, 256, 256, 224))
    ours = pixels(crops(packed, boxes, no_flips(len(photos)), 224))
    theirs = torch.stack([F.center_crop(F.resize(t, [256], antialias=True), [224]) for t in tensors]).float()
    moved = torch.stack([F.center_crop(F.resize(t.roll(2, 2), [256], antialias=True), [224]) for t in tensors]).float()
    error = (ours - theirs).abs().mean()
    assert error < 5
    assert error < 0.5 * (moved - theirs).abs().mean()

    random, _ = random_params.crop_boxes(0, 0, sizes, 256, CropRange((0.08, 1.0), (3 / 4, 4 / 3), 0.0))
    ours = pixels(crops(packed, torch.from_numpy(random), no_flips(len(photos)), 128))
    errors = []
    for tensor, (width, height), box, crop in zip(tensors, sizes.tolist(), random.tolist(), ours, strict=True):
        left, right = (round(box[k] * width / 65536) for k in (0, 2))
        top, bottom = (round(box[k] * height / 65536) for k in (1, 3))
        want = F.resized_crop(tensor, top, left, bottom - top, right - left, [128, 128], antialias=True).float()
        errors.append((crop - want).abs().mean())
    assert torch.stack(errors).mean() < 5


def test_memory_is_used_again_when_nobody_holds_it() -> None:
    """A result's memory serves a later one once the result and all views of it are gone, and never before."""
    images, boxes = random_images(6, 40), random_boxes(6, 40)

    def cut(count: int) -> Tensor:
        return crops(images[:count], boxes[:count], no_flips(count), 32)

    expected = cut(6).clone()
    held = [cut(6), cut(3)[1:], cut(5).permute(0, 2, 3, 1), cut(6).flatten()[7:]]
    again = [cut(count) for count in (6, 1, 4, 6, 6, 2)]
    places = [tensor.untyped_storage().data_ptr() for tensor in (*held, *again)]
    assert len(set(places)) == len(places)
    assert torch.equal(held[0], expected)
    assert torch.equal(held[1], expected[1:3])
    assert torch.equal(held[2].permute(0, 3, 1, 2), expected[:5])
    assert torch.equal(held[3], expected.flatten()[7:])
    del held, again
    cut(6)
    tracemalloc.start()  # sees what NumPy asks the system for
    try:
        for count in (6, 1, 4, 6):
            cut(count)
        _, reused = tracemalloc.get_traced_memory()
        kept = [cut(6)[0] for _ in range(9)]  # a view holds all of its batch
        _, fresh = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reused < expected.nbytes
    assert fresh > 5 * expected.nbytes
    assert all(torch.equal(crop, expected[0]) for crop in kept)


def test_what_a_backward_pass_needs_is_not_written_over() -> None:
    """A graph of operations holds its inputs, also when no name in Python does."""
    images, boxes = random_images(2, 40), random_boxes(2, 40)
    weight = torch.ones(1, 3, 32, 32, requires_grad=True)

    def gradient(between: int) -> Tensor:
        total = (crops(images, boxes, no_flips(2), 32) * weight).sum()
        for seed in range(between):
            crops(random_images(2, 40, seed), random_boxes(2, 40, seed), no_flips(2), 32)
        return torch.autograd.grad(total, weight)[0]

    assert torch.equal(gradient(between=9), gradient(between=0))


@given(st.integers(0, 2**32), st.integers(16, 40), st.integers(16, 48), st.integers(16, 48))
def test_numpy_cuts_the_same_pixels_for_one_image(seed: int, side: int, crop: int, resize: int) -> None:
    """The centre crop without torch has the bits of the other forms, of any shape, smaller or enlarged."""
    random = np.random.default_rng(seed)
    image, size = random.integers(0, 256, (1, side, side, 3), np.uint8), random.integers(1, 500, (1, 2), np.int32)
    boxes = center.eval_boxes(size, side, max(crop, resize), crop)
    crops = Crops(torch.zeros(1, dtype=torch.int64), torch.from_numpy(boxes), torch.zeros(1, dtype=torch.bool), crop)
    expected = resample.resample(torch.from_numpy(image), crops, torch.zeros(3), torch.ones(3))[0]
    assert np.array_equal(center.cut(image[0], boxes[0], crop), expected.numpy())
