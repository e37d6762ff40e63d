"""Random parameters are pure functions of (seed, step), the same for every number of processes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import RandomResizedCrop

from pipeline.loader import center, random_params, sampler
from pipeline.loader.sampler import Share

SIZES = st.lists(st.tuples(st.integers(8, 2000), st.integers(8, 2000)), min_size=1, max_size=24)


def test_every_kind_of_draw_has_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the seed, a purpose that no other kind has, and the step or epoch; none has a part of another."""
    whole, keys, sizes = sampler.generator, [], np.array([[50, 40]], np.int32)
    monkeypatch.setattr(sampler, "generator", lambda *key: keys.append(key) or whole(*key))  # type: ignore[func-returns-value]
    sampler.order(1007, 11, 5)
    random_params.crop_boxes(1007, [11], sizes, 64, (0.08, 1.0), 0.5)
    sampler.dropout_seed(1007, 11)
    random_params.jitter_factors(1007, [11], 1, 0.4)
    random_params.erase_boxes(1007, [11], 1, 64, 0.5)
    random_params.draw_mix(1007, 11, 2, 64, 1.0, 1.0)
    assert sorted(keys) == [(1007, purpose, 11) for purpose in range(1, 7)]
    streams = [whole(*key).bytes(64) for key in ((0, 1, 0), (1, 0, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1), (0, 0, 0))]
    assert len({stream[start : start + 8] for stream in streams for start in range(0, 64, 8)}) == 6 * 8


def test_where_no_crop_fits_it_is_torchvisions_central_one() -> None:
    """A whole long image is wider or narrower than the ratio allows: the crop is central and as long as it may be.

    In a batch, each image has its own.
    """
    draw = RandomResizedCrop(32, scale=(1.0, 1.0), ratio=(0.75, 4 / 3))
    sizes = np.array([(300, 30), (30, 300), (300, 31)], np.int32)
    boxes, _ = random_params.crop_boxes(0, [0], sizes, 64, (1.0, 1.0), 0.5)
    for size, box in zip(sizes, boxes, strict=True):
        theirs = draw.make_params([torch.zeros(3, size[1], size[0])])
        left, top, right, bottom = box / (64 * center.GRID) * np.tile(size, 2)
        assert (left, top) == pytest.approx((theirs["left"], theirs["top"]), abs=0.6)
        assert (right - left, bottom - top) == pytest.approx((theirs["width"], theirs["height"]), abs=0.6)
        assert (left + right, top + bottom) == pytest.approx(size, abs=0.05)


def test_a_crop_has_the_area_and_the_ratio_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a choice of area and ratio, a crop has just these in the original image, wherever it lies."""
    size = np.tile(np.array([400, 300], np.int32), (50, 1))
    monkeypatch.setattr(random_params, "CROP_RATIO", (0.5, 0.5))
    boxes, flips = random_params.crop_boxes(5, [3], size, 256, (0.25, 0.25), 1.0)
    extent = (boxes[:, 2:] - boxes[:, :2]) / (256 * center.GRID) * size
    assert extent.prod(1) == pytest.approx(0.25 * 400 * 300, rel=1e-3)
    assert extent[:, 0] / extent[:, 1] == pytest.approx(0.5, rel=1e-3)
    assert (np.ptp(boxes[:, :2], axis=0) > [256 * 256 * 0.4, 256 * 256 * 0.1]).all()
    assert flips.all()


def test_the_last_bit_of_an_exponential_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines differ in the last bit of exp: ratios and lam are whole multiples of 2^-20 and do not show it."""
    uniform, exp = np.random.default_rng(0).random(1000), np.exp
    ratios = random_params._log_uniform(uniform, (0.3, 3.3))
    monkeypatch.setattr(np, "exp", lambda values: np.nextafter(exp(values), np.inf))
    assert (random_params._log_uniform(uniform, (0.3, 3.3)) == ratios).all()
    assert (ratios * 2**20 % 1 == 0).all()
    assert all(random_params.draw_mix(0, step, 2, 64, 0.4, 0.0).lam * 2**20 % 1 == 0 for step in range(20))
    assert abs(ratios - exp(np.log(0.3) + (np.log(3.3) - np.log(0.3)) * uniform)).max() <= 2**-21


@given(
    seed=st.integers(0, 2**32 - 1), sizes=SIZES, packed_size=st.integers(16, 512), least=st.sampled_from([1e-6, 0.08]),
)  # fmt: skip
def test_boxes_stay_inside(seed: int, sizes: list[tuple[int, int]], packed_size: int, least: float) -> None:
    """A training crop lies in the square and covers at least one of its pixels, whatever the image's shape."""
    boxes, flips = random_params.crop_boxes(seed, [seed], np.array(sizes, np.int32), packed_size, (least, 1.0), 0.5)
    assert (boxes.shape, flips.shape) == ((len(sizes), 4), (len(sizes),))
    assert ((boxes >= 0) & (boxes <= packed_size * center.GRID)).all()
    assert (boxes[:, 2:] - boxes[:, :2] >= center.GRID).all()


def test_a_crop_smaller_than_a_pixel_becomes_one() -> None:
    """Wherever it lies, at an edge, too."""
    sizes = np.tile(np.array([[300, 200]], np.int32), (2000, 1))
    boxes, _ = random_params.crop_boxes(0, [0], sizes, 4, (1e-6, 1e-6), 0.5)
    assert (boxes[:, 2:] - boxes[:, :2] == center.GRID).all()
    assert (boxes.min(), boxes.max()) == (0, 4 * center.GRID)


@given(sizes=SIZES, packed_size=st.integers(16, 512), resize=st.integers(16, 512), data=st.data())
def test_evaluation_boxes_are_central_squares(
    sizes: list[tuple[int, int]], packed_size: int, resize: int, data: st.DataObject
) -> None:
    """In the original image, a square of crop / resize of the short side. A crop larger than the image is all of it."""
    crop = data.draw(st.integers(16, resize))
    shape, full = np.array(sizes, np.int32), packed_size * center.GRID
    boxes = center.eval_boxes(shape, packed_size, resize, crop)
    assert ((boxes >= 0) & (boxes <= full)).all()
    assert (abs(boxes[:, :2] + boxes[:, 2:] - full) <= center.GRID).all()
    expected = shape.min(1, keepdims=True) * crop / resize / shape * full
    assert (abs(boxes[:, 2:] - boxes[:, :2] - np.maximum(expected, center.GRID)) <= 1).all()
    assert center.eval_boxes(shape, packed_size, resize, 2000 * resize).tolist() == [[0, 0, full, full]] * len(sizes)


def test_crops_are_drawn_as_torchvision_draws_them() -> None:
    """Over many draws the areas and the ratios are distributed as those of torchvision's RandomResizedCrop."""
    torch.manual_seed(0)
    draw, image = RandomResizedCrop(224), torch.zeros(3, 240, 320)
    theirs = [draw.make_params([image]) for _ in range(3000)]
    area = np.array([p["width"] * p["height"] / (240 * 320) for p in theirs])
    ratio = np.log([p["width"] / p["height"] for p in theirs])
    boxes, _ = random_params.crop_boxes(0, [0], np.tile(np.array([320, 240], np.int32), (3000, 1)), 256, (0.08, 1), 0.5)
    extent = (boxes[:, 2:] - boxes[:, :2]) / (256 * center.GRID)
    ours = np.log(extent[:, 0] * 320 / (extent[:, 1] * 240))
    assert abs(extent.prod(1).mean() - area.mean()) < 0.03
    assert abs(ours.mean() - ratio.mean()) < 0.03
    assert abs(extent.prod(1).std() - area.std()) < 0.03


@given(crop=st.integers(16, 300), chance=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
def test_erased_rectangles_stay_inside(crop: int, chance: float, seed: int) -> None:
    """A rectangle lies in the crop and never covers a whole side, or there is none."""
    boxes = random_params.erase_boxes(seed, [0], 30, crop, chance)
    extent = boxes[:, 2:] - boxes[:, :2]
    none = ~boxes.any(1)
    assert ((extent[~none] >= 1) & (extent[~none] < crop)).all()
    assert ((boxes >= 0) & (boxes <= crop)).all()
    assert not random_params.erase_boxes(seed, [0], 30, crop, 0.0).any()


@given(
    seed=st.integers(0, 2**32 - 1), step=st.integers(0, 10**6), size=st.sampled_from([1, 2, 3, 4, 6, 12]),
    alphas=st.tuples(st.sampled_from([0.0, 0.2, 1.0]), st.sampled_from([0.0, 1.0])),
)  # fmt: skip
def test_the_mixes_of_any_world_size_merge_to_the_same(
    seed: int, step: int, size: int, alphas: tuple[float, float]
) -> None:
    """Every rank mixes its share with the partners that one process would, and loads no image twice or in vain."""
    whole = random_params.draw_mix(seed, step, 12, 60, *alphas)
    shares = [random_params.local(whole, Share(range(rank, rank + 1), size)) for rank in range(size)]
    for name in ("images", "partners"):
        merged = np.concatenate([positions[getattr(share, name)] for positions, share in shares])
        assert merged.tolist() == getattr(whole, name).tolist()
    for positions, share in shares:
        assert sorted({*share.images.tolist(), *share.partners.tolist()}) == list(range(len(positions)))
        assert (np.diff(positions) > 0).all()
        assert (share.lam, share.box, share.keep) == (whole.lam, whole.box, whole.keep)


@given(
    seed=st.integers(0, 2**32 - 1), crop=st.integers(16, 300), batch=st.integers(1, 20),
    alphas=st.tuples(st.floats(0, 4), st.floats(0, 4)),
)  # fmt: skip
def test_the_share_of_the_own_image_is_exact(seed: int, crop: int, batch: int, alphas: tuple[float, float]) -> None:
    """lam is the own image's share: of every pixel in mixup, of the area that the clipped box leaves in CutMix."""
    mix = random_params.draw_mix(seed, 0, batch, crop, *alphas)
    x0, y0, x1, y1 = mix.box
    assert 0 <= x0 <= x1 <= crop
    assert 0 <= y0 <= y1 <= crop
    assert sorted(mix.partners.tolist()) == list(range(batch))
    assert {type(mix.lam), type(mix.keep)} == {float}  # no number of NumPy's, which prints in another way
    if mix.lam == 1:
        assert (mix.partners == mix.images).all()
    elif mix.keep == 0 and mix.box != (0, 0, crop, crop):
        assert mix.lam == (crop**2 - (x1 - x0) * (y1 - y0)) / crop**2
    else:
        assert mix.lam == mix.keep == float(np.float32(mix.lam))


def test_the_draws_are_these() -> None:
    """The streams themselves: a change here changes every result, so it must be meant."""
    assert sampler.batch_rows(0, 0, 6, 10).tolist() == [9, 4, 2, 1, 0, 7]
    assert sampler.order(3, 2, 8).tolist() == [1, 3, 6, 5, 4, 2, 7, 0]
    assert sampler.dropout_seed(3, 5) == 2941592435334170133
    boxes, flips = random_params.crop_boxes(0, [1], np.array([[320, 240], [240, 320]], np.int32), 256, (0.08, 1.0), 0.5)
    assert boxes.tolist() == [[8134, 314, 56584, 56435], [1244, 34045, 40132, 59006]]
    assert flips.tolist() == [False, True]
    factors = [0.7681664824485779, 1.2022955417633057, 0.7582871317863464]
    assert random_params.jitter_factors(0, [1], 1, 0.4).tolist() == [factors]
    erasures = [[0] * 4, [0] * 4, [114, 15, 210, 186], [11, 104, 72, 124]]
    assert random_params.erase_boxes(0, [1], 4, 224, 0.5).tolist() == erasures
    mixup, cutmix = random_params.draw_mix(0, 1, 6, 224, 0.2, 0.0), random_params.draw_mix(0, 1, 6, 224, 0.0, 1.0)
    assert mixup.partners.tolist() == cutmix.partners.tolist() == [4, 0, 2, 3, 5, 1]
    assert (mixup.lam, mixup.box, mixup.keep) == (0.9998912811279297, (0, 0, 224, 224), 0.9998912811279297)
    assert (cutmix.lam, cutmix.box, cutmix.keep) == (0.8908641581632653, (97, 36, 171, 110), 0.0)
    is_mixup = [random_params.draw_mix(0, step, 6, 224, 0.2, 1.0).keep > 0 for step in range(8)]
    assert is_mixup == [False, True, False, True, True, True, False, True]
