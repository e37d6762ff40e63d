"""What training adds to crops is what torchvision's transforms do, and depends on nothing but its own draws."""

import dataclasses

import pytest
import torch
import torchvision.transforms.v2.functional as F
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dataset.normalization import IMAGENET
from pipeline.loader import augment, random_params
from pipeline.loader.random_params import AugmentParams
from tests.helpers.crops import cropped, jitter, mixes, random_boxes, random_images


@given(strength=st.floats(0, 1), seed=st.integers(0, 10**6))
def test_colours_change_as_torchvision_changes_them(strength: float, seed: int) -> None:
    """Brightness, contrast and saturation, in this order, give what adjust_brightness and its like give."""
    whole, factors = random_images(3, 24, seed).permute(0, 3, 1, 2).float(), jitter(3, strength, seed)
    ours = augment.jitter_colors(whole, factors)
    for image, result, (brightness, contrast, saturation) in zip(whole / 255, ours, factors.tolist(), strict=True):
        bright = F.adjust_brightness(image, brightness)
        theirs = F.adjust_saturation(F.adjust_contrast(bright, contrast), saturation)
        assert (result - theirs * 255).abs().max() < 2e-3


def test_a_factor_of_one_changes_no_bit() -> None:
    """An image whose factors are 1 comes out as it went in, also beside images that change."""
    whole, factors = random_images(4, 32).permute(0, 3, 1, 2).float(), jitter(4)
    factors[1::2] = 1
    ours = augment.jitter_colors(whole, factors)
    assert torch.equal(ours[1::2], whole[1::2])
    assert not torch.equal(ours[0], whole[0])


def test_the_mean_for_the_contrast_has_no_order() -> None:
    """The same pixels elsewhere in the image have the same mean, to the bit: it is a sum of whole numbers."""
    random = torch.Generator().manual_seed(0)
    grey = torch.rand(40, 1, 50, 50, generator=random) * 255
    other = grey.flatten(2)[..., torch.randperm(2500, generator=random)].view_as(grey)
    assert not torch.equal(grey.mean((1, 2, 3)), other.mean((1, 2, 3)))  # in float32 there is one
    assert torch.equal(augment._mean(grey), augment._mean(other))
    assert (augment._mean(grey).flatten() - grey.double().mean((1, 2, 3))).abs().max() < 1e-3


def test_rectangles_are_set_to_the_mean_colour() -> None:
    """As torchvision's erase with value 0 in the normalized image; images without a rectangle stay."""
    images = torch.randn(6, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    boxes = random_params.erase_boxes(3, [0], 6, 40, 0.5)
    assert 0 < boxes.any(1).sum() < 6
    for image, result, (x0, y0, x1, y1) in zip(images, augment.erase(images, boxes), boxes.tolist(), strict=True):
        assert torch.equal(result, F.erase(image, y0, x0, y1 - y0, x1 - x0, torch.zeros(3, 1, 1)))


def test_with_everything_off_training_sees_the_plain_crops() -> None:
    """The very bits of `crops`, and neither images nor labels are touched by a mix that mixes nothing."""
    images, boxes, flips = random_images(4, 64), random_boxes(4, 64), torch.arange(4) % 2 == 0
    plain = cropped(images, boxes, flips, 48)
    off = AugmentParams(
        boxes.numpy(), flips.numpy(), jitter(4, strength=0.0), random_params.erase_boxes(0, [0], 4, 48, 0.0)
    )
    assert torch.equal(augment.training_crops(images, torch.arange(4), off, 48, IMAGENET), plain)
    nothing, labels = random_params.draw_mix(0, 0, 4, 48, 0.0, 0.0), torch.arange(4)
    assert augment.mix_images(plain, nothing) is plain
    assert all(each is labels for each in augment.mix_labels(labels, nothing, 5))


@pytest.mark.parametrize("lam", [0.25, 0.49, 0.5, 0.51])
def test_mixup_is_the_weighted_mean_of_images_and_targets(lam: float) -> None:
    """lam of the image and its label, 1 - lam of the partner and its; from a half on, the image's label counts."""
    mix = dataclasses.replace(mixes(8, 20)[0], lam=lam, keep=lam)
    images, labels = torch.randn(8, 3, 20, 20, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    ours, (heavier, targets) = augment.mix_images(images, mix), augment.mix_labels(labels, mix, 3)
    assert (ours - torch.lerp(images[mix.partners], images, lam)).abs().max() < 1e-6
    classes = torch.eye(3)
    assert (targets - torch.lerp(classes[labels[mix.partners]], classes[labels], lam)).abs().max() < 1e-6
    assert torch.equal(heavier, labels if lam >= 0.5 else labels[mix.partners])


def test_cutmix_pastes_the_partner_into_the_box() -> None:
    """Inside the box the partner's very pixels, outside the own ones; the targets are the shares of the area."""
    _, mix = mixes(8, 20)
    own, partner = torch.zeros(8, 3, 20, 20), torch.randn(8, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    both = dataclasses.replace(mix, partners=8 + mix.partners)
    ours = augment.mix_images(torch.cat([own, partner]), both)
    x0, y0, x1, y1 = mix.box
    assert torch.equal(ours[:, :, y0:y1, x0:x1], partner[mix.partners][:, :, y0:y1, x0:x1])
    assert int((ours == 0).sum()) == 8 * 3 * round(mix.lam * 400)
    _, targets = augment.mix_labels(torch.tensor([0] * 8 + [1] * 8), both, 2)
    assert torch.equal(targets, torch.tensor([mix.lam, 1 - mix.lam]).expand(8, 2))
