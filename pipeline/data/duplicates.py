"""Duplicates: images with equal pixels, and images with nearly equal perceptual hashes."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from pipeline.base.errors import Fault, UserError
from pipeline.base.text import in_words
from pipeline.config.params import Duplicates
from pipeline.data.images import ImageInfo
from pipeline.dataset.split_table import CONFLICT, DUPLICATE, SPLITS
from pipeline.sources.layout import ImageFile

CANDIDATES = 2**21  # pairs of hashes that are compared at once: about 100 MB


@dataclass(frozen=True)
class NearDuplicates:
    """Groups of images with similar perceptual hashes, and how many pairs are similar."""

    component: NDArray[np.int64]  # [N]: images with the same number are in one group
    pairs: int  # pairs of images within the threshold
    pairs_across: int  # pairs of images in different given splits


# ---- equal pixels ----


def exclusions(image_files: Sequence[ImageFile], infos: Sequence[ImageInfo], rule: Duplicates) -> list[str]:
    """The reason why each image is excluded; empty if it is kept. The rule `ignore` keeps all that can be decoded.

    Of images with equal pixels in one class, one is kept: the one in test, else val, else train, if the data set has a
    split, so that no test image is trained on. If several remain, the smallest path is kept. Images with equal pixels
    in two classes are all excluded.
    """
    reasons = [info.reason for info in infos]
    if rule == "ignore":
        return reasons
    for rows in exact_groups(infos):
        if len({image_files[row].label for row in rows}) > 1:
            for row in rows:
                reasons[row] = CONFLICT
            continue
        preferred = min(rows, key=lambda row: _preference(image_files[row]))
        for row in rows:
            if row != preferred:
                reasons[row] = f"{DUPLICATE} of {image_files[preferred].path}"
    return reasons


def check_copied_classes(image_files: Sequence[ImageFile], infos: Sequence[ImageInfo]) -> None:
    """Raise UserError for a class that also has nine tenths of the images of another one: a folder of copies.

    Without this, the images of both would be left out, and the classes would be empty.
    """
    pairs = zip(image_files, infos, strict=True)
    sizes = Counter(label for label, _ in {(file.label, info.pixels) for file, info in pairs if not info.reason})
    common: Counter[tuple[str, str]] = Counter()  # images with equal pixels, for two classes
    for rows in exact_groups(infos):
        common.update(permutations({image_files[row].label for row in rows}, 2))
    copied: dict[str, list[str]] = defaultdict(list)
    for (name, holder), number in sorted(common.items()):
        if 10 * number >= 9 * sizes[name]:
            copied[holder].append(name)
    if copied:
        holder = max(copied, key=lambda label: (len(copied[label]), sizes[label], label))
        value = f"class {holder!r} has the images of {in_words([repr(name) for name in copied[holder]])}"
        reason = "equal images in two classes have no certain class"
        remedy = f"if {holder!r} is a folder of copies, remove it; else correct the labels"
        raise UserError(Fault("classes", value, "value", reason, remedy=remedy))


def _preference(image_file: ImageFile) -> tuple[int, str]:
    """A sort key: of equal images, the one with the smallest key is kept."""
    return -SPLITS.index(image_file.given_split or "train"), image_file.path


def exact_groups(infos: Sequence[ImageInfo]) -> list[list[int]]:
    """Groups of two or more row numbers; the images of a group have equal pixels."""
    rows = defaultdict(list)
    for row, info in enumerate(infos):
        if not info.reason:
            rows[info.pixels].append(row)
    return [group for group in rows.values() if len(group) > 1]


def distinct_identities(image_files: Sequence[ImageFile], infos: Sequence[ImageInfo]) -> list[str]:
    """An identity of each image that no other image has: its pixel hash; for a copy, a hash of that and the path.

    The copy with the smallest path keeps the pixel hash. So `ignore` and `together` differ only for the other copies.
    """
    identities = [info.pixels for info in infos]
    for rows in exact_groups(infos):
        for row in sorted(rows, key=lambda row: image_files[row].path)[1:]:
            text = f"{infos[row].pixels} {image_files[row].path}"
            identities[row] = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
    return identities


# ---- near duplicates ----


def near_duplicates(phashes: NDArray[np.uint64], splits: NDArray[np.int64], threshold: int) -> NearDuplicates:
    """Group images [N] if their hashes are at most `threshold` bits apart, directly or through other images.

    `splits` [N] is the number of each image's given split (all 0 if there is none). Equal hashes are counted without
    listing their pairs, so thousands of blank pages take no time.
    """
    hashes, index = np.unique(phashes, return_inverse=True)
    counts = np.zeros((len(hashes), len(SPLITS)), np.int64)  # images with each hash in each split
    np.add.at(counts, (index, splits), 1)
    totals = counts.sum(1)
    pairs = int((totals * (totals - 1) // 2).sum())
    pairs_within = int((counts * (counts - 1) // 2).sum())
    component = np.arange(len(hashes))
    for left, right in near_pairs(hashes, threshold):
        pairs += int((totals[left] * totals[right]).sum())
        pairs_within += int((counts[left] * counts[right]).sum())
        component = merge_components(component, left, right)
    return NearDuplicates(component[index], pairs, pairs - pairs_within)


def near_pairs(hashes: NDArray[np.uint64], threshold: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """All pairs of hashes at most `threshold` bits apart, in chunks of row numbers (left, right). The hashes differ.

    Exact, and each pair once, by multi-index hashing (Norouzi, Punjani, Fleet: Fast Search in Hamming Space with
    Multi-Index Hashing, CVPR 2012). The 64 bits are cut into 4 bands of 16. Let the threshold be 4 a + b, b < 4. Two
    hashes within it differ by at most a bits in one of the first b + 1 bands, or by at most a - 1 bits in one of the
    other bands. Otherwise they would differ by at least (b + 1) (a + 1) + (3 - b) a = 4 a + b + 1 bits.
    So each band is sorted once. For every mask of at most that many bits, all hashes look up at once which hashes have
    their band xor the mask.
    """
    masks = np.arange(2**16)
    bands = [(hashes >> np.uint64(16 * band)).astype(np.int64) & 0xFFFF for band in range(4)]
    radii = [threshold // 4 - (band > threshold % 4) for band in range(4)]  # -1: no mask
    for band, (values, radius) in enumerate(zip(bands, radii, strict=True)):
        order = np.argsort(values, kind="stable")
        starts = np.searchsorted(values[order], np.arange(2**16 + 1))
        for mask in masks[np.bitwise_count(masks) <= radius]:
            partner_values = values ^ mask
            for left, position in _expand(starts[partner_values], starts[partner_values + 1]):
                right = order[position]
                new = (left < right) & (np.bitwise_count(hashes[left] ^ hashes[right]) <= threshold)
                for earlier in range(band):  # the pairs that an earlier band already gave
                    new &= np.bitwise_count(bands[earlier][left] ^ bands[earlier][right]) > radii[earlier]
                yield left[new], right[new]


def _expand(first: NDArray[np.int64], last: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Every (row, position) with first[row] <= position < last[row], in chunks of about CANDIDATES."""
    counts = last - first
    ends = np.cumsum(counts)
    begins = ends - counts  # the number of candidates of all earlier rows
    cuts = np.searchsorted(ends, np.arange(CANDIDATES, ends[-1], CANDIDATES)) + 1
    for rows in np.split(np.arange(len(first)), cuts):
        row = np.repeat(rows, counts[rows])
        if len(row):
            yield row, first[row] + np.arange(len(row)) - (begins[row] - begins[rows[0]])


def merge_components(
    component: NDArray[np.int64], left: NDArray[np.int64], right: NDArray[np.int64]
) -> NDArray[np.int64]:
    """New component numbers [N] after the components of each left and right are merged."""
    differs = component[left] != component[right]
    if not differs.any():
        return component
    edges = coo_array((differs[differs], (component[left[differs]], component[right[differs]])), (len(component),) * 2)
    merged: NDArray[np.int64] = connected_components(edges, directed=False)[1].astype(np.int64)
    return merged[component]
