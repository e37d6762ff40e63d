"""The random parameters of augmentation: pure functions of (seed, step), the same for any number of processes.

They are drawn for the whole global batch, and each process takes its share. `sampler.generator` gives every step its
own random stream. Several steps are computed together, which gives the same bytes and takes less time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.loader import sampler
from pipeline.loader.center import GRID, clip_boxes
from pipeline.loader.sampler import CROP, ERASE, JITTER, MIX, Share

ATTEMPTS = 10  # as in torchvision; then RandomResizedCrop takes a central crop, and RandomErasing erases nothing
CROP_RATIO = (3 / 4, 4 / 3)  # least and most width / height of a crop, as torchvision's default [Szegedy et al. 2015]
ERASE_SCALE = (0.02, 0.33)  # of a crop's area; this and the ratio are torchvision's defaults [Zhong et al. 2017]
ERASE_RATIO = (0.3, 3.3)  # height / width


@dataclass(frozen=True)
class AugmentParams:
    """The random parameters of n training images, before images are mixed; each function below draws one of them."""

    boxes: NDArray[np.int64]  # [n, 4] of `crop_boxes`
    flips: NDArray[np.bool_]  # [n] of `crop_boxes`
    factors: NDArray[np.float32]  # [n, 3] of `jitter_factors`
    erasures: NDArray[np.int64]  # [n, 4] of `erase_boxes`

    def at(self, positions: NDArray[np.int64]) -> "AugmentParams":
        """The parameters of the images at these positions."""
        return AugmentParams(
            self.boxes[positions], self.flips[positions], self.factors[positions], self.erasures[positions]
        )


@dataclass(frozen=True)
class Mix:
    """How the images of a batch are mixed. All have the same lam and box; each image has its own partner.

    Inside `box` a mixed image is `keep` · image + (1 - `keep`) · partner, outside it is the image. So `lam` is
    1 - (1 - keep) · box area / crop area. If lam is 1, nothing is mixed and every image is its own partner.
    """

    images: NDArray[np.int64]  # [n] positions of the images that are mixed (see `local`)
    partners: NDArray[np.int64]  # [n] positions of their partners
    lam: float  # the image's share of the mixture, and of its target
    box: tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels of the crop: all of it (mixup) or a part (CutMix)
    keep: float  # lam (mixup) or 0 (CutMix)


def crop_boxes(
    seed: int,
    steps: Sequence[int],
    sizes: NDArray[np.int32],
    packed_size: int,
    scale: tuple[float, float],
    flip: float,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Random resized crops of global batches, as torchvision's RandomResizedCrop and RandomHorizontalFlip draw them.

    `sizes` [n, 2] are the original widths and heights, of the batch of each step after another. `scale` is the least
    and the most share of the original image's area, and CROP_RATIO refers to the original image, too: `prepare` resized
    it to `packed_size` × `packed_size` pixels. Crops are not rounded to whole pixels. `flip` is the probability of a
    mirrored crop.
    Returns boxes [n, 4] (x0, y0, x1, y1 in 1/256 pixels of the packed image) and flips [n].
    """
    shape, position, mirror = _uniform(seed, CROP, steps, len(sizes) // len(steps), ((ATTEMPTS, 2), (2,), ()))
    full = sizes.astype(np.float64)[:, None, :]
    area = full[..., 0] * full[..., 1] * (scale[0] + (scale[1] - scale[0]) * shape[..., 0])
    aspect = _log_uniform(shape[..., 1], CROP_RATIO)
    candidates = np.stack([np.sqrt(area * aspect), np.sqrt(area / aspect)], -1)  # [n, ATTEMPTS, 2] width, height
    fits = np.logical_and(candidates[..., 0] <= full[..., 0], candidates[..., 1] <= full[..., 1])
    has_fit = np.logical_or.reduce(fits, axis=1)
    first_fit = candidates[np.arange(len(sizes)), fits.argmax(axis=1)]
    width, height = full[:, 0, 0], full[:, 0, 1]
    central = np.stack([np.minimum(width, height * CROP_RATIO[1]), np.minimum(height, width / CROP_RATIO[0])], -1)
    extent = np.where(has_fit[:, None], first_fit, central)
    start = np.where(has_fit[:, None], position, 0.5) * (full[:, 0] - extent)
    corners = np.concatenate([start, start + extent], -1) / np.tile(full[:, 0], 2) * (packed_size * GRID)
    return clip_boxes(np.rint(corners).astype(np.int64), packed_size), mirror < flip


def jitter_factors(seed: int, steps: Sequence[int], batch: int, strength: float) -> NDArray[np.float32]:
    """Factors [steps · batch, 3] of brightness, contrast and saturation, each uniform in [1 - strength, 1 + strength].

    `strength` is in [0, 1]; with 0 every factor is 1.
    """
    if strength == 0:
        return np.ones((len(steps) * batch, 3), np.float32)
    (random,) = _uniform(seed, JITTER, steps, batch, ((3,),))
    return (1 - strength + 2 * strength * random).astype(np.float32)


def erase_boxes(seed: int, steps: Sequence[int], batch: int, crop: int, chance: float) -> NDArray[np.int64]:
    """Rectangles [steps · batch, 4] (x0, y0, x1, y1 in pixels of the crop) to erase.

    They are drawn as torchvision's RandomErasing draws them. An image has one with probability `chance`; otherwise its
    row is zeros.
    """
    if chance == 0:  # the draws would take half of the time of a plan
        return np.zeros((len(steps) * batch, 4), np.int64)
    shape, position, coin = _uniform(seed, ERASE, steps, batch, ((ATTEMPTS, 2), (2,), ()))
    area = crop * crop * (ERASE_SCALE[0] + (ERASE_SCALE[1] - ERASE_SCALE[0]) * shape[..., 0])
    aspect = _log_uniform(shape[..., 1], ERASE_RATIO)
    candidates = np.rint(np.sqrt(np.stack([area / aspect, area * aspect], -1)))  # [n, ATTEMPTS, 2] width, height
    fits = np.logical_and.reduce(candidates < crop, axis=-1)
    extent = candidates[np.arange(len(coin)), fits.argmax(axis=1)]
    start = np.floor(position * (crop - extent + 1))
    is_erased = np.logical_or.reduce(fits, axis=1) & (coin < chance)
    return np.where(is_erased[:, None], np.concatenate([start, start + extent], -1), 0).astype(np.int64)


def draw_mix(seed: int, step: int, batch: int, crop: int, mixup: float, cutmix: float) -> Mix:
    """How the global batch of `step` is mixed: by mixup [Zhang et al. 2018] or CutMix [Yun et al. 2019].

    `mixup` and `cutmix` are the alphas of Beta(alpha, alpha); 0 turns one off. With both, each has probability 1/2, as
    in torchvision's reference training. The batch has one lam and one box; partners are a permutation of the batch.
    """
    positions = np.arange(batch)
    unmixed = Mix(positions, positions, 1.0, (0, 0, 0, 0), 1.0)
    choices = [(name, alpha) for name, alpha in (("mixup", mixup), ("cutmix", cutmix)) if alpha > 0]
    if not choices:
        return unmixed
    random = sampler.generator(seed, MIX, step)
    name, alpha = choices[random.integers(len(choices))]
    partners = random.permutation(batch)
    lam = float(_round(random.beta(alpha, alpha)))
    box, keep = (0, 0, crop, crop), lam
    if name == "cutmix":
        box, keep = _cutmix_box(random.integers(crop, size=2), lam, crop), 0.0
        lam = (crop**2 - (box[2] - box[0]) * (box[3] - box[1])) / crop**2  # the area outside the clipped box
    return Mix(positions, partners, lam, box, keep) if lam < 1 else unmixed


def local(mix: Mix, share: Share) -> tuple[NDArray[np.int64], Mix]:
    """The part of a global batch's mix that one process needs.

    Returns the positions [m] in the global batch of this process's images and of their partners, each once, and the mix
    of this share, with positions among those m images. Without mixing these are just its images, in order.
    """
    if mix.lam == 1:
        own = share.take(mix.images)
        return own, replace(mix, images=np.arange(len(own)), partners=np.arange(len(own)))
    pairs = np.concatenate([share.take(mix.images), share.take(mix.partners)])
    positions, index = np.unique(pairs, return_inverse=True)
    images, partners = index.reshape(2, -1)
    return positions, replace(mix, images=images, partners=partners)


def _uniform(
    seed: int, purpose: int, steps: Sequence[int], batch: int, shapes: Sequence[tuple[int, ...]]
) -> list[NDArray[np.float64]]:
    """Uniform numbers in [0, 1), for each of the shapes an array [steps · batch, *shape].

    Each step has the stream of its own. From it come `batch` values of the first shape, then those of the next.
    """
    counts = [batch * math.prod(shape) for shape in shapes]
    drawn = np.stack([sampler.generator(seed, purpose, step).random(sum(counts)) for step in steps])
    parts = np.split(drawn, np.cumsum(counts[:-1]), axis=1)
    return [part.reshape(len(steps) * batch, *shape) for part, shape in zip(parts, shapes, strict=True)]


def _cutmix_box(centre: NDArray[np.int64], lam: float, crop: int) -> tuple[int, int, int, int]:
    """CutMix's square around `centre`: 1 - lam of the crop's area before it is clipped to the crop."""
    half = int(0.5 * np.sqrt(1 - lam) * crop)
    x0, y0, x1, y1 = np.clip(np.concatenate([centre - half, centre + half]), 0, crop).tolist()
    return x0, y0, x1, y1


def _log_uniform(uniform: NDArray[np.float64], bounds: tuple[float, float]) -> NDArray[np.float64]:
    """Numbers between the bounds with a uniform logarithm, from uniform numbers in [0, 1)."""
    low, high = np.log(bounds[0]), np.log(bounds[1])
    return _round(np.exp(low + (high - low) * uniform))


def _round(values: ArrayLike) -> NDArray[np.float64]:
    """The values as multiples of 2^-20: the last bit of exp or pow, which differs between machines, has no effect."""
    multiples: NDArray[np.float64] = np.rint(np.asarray(values) * 2**20) / 2**20
    return multiples
