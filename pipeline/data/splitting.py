"""The algorithm of the split: a pure function from images to the split of each.

Near duplicates form a group, and a group is in one split. This split is a function of a seeded hash of the group alone.
So an image changes its split only when a near duplicate of it is added, or if it was moved to fill an empty split
(`assign`). The cost: the splits have the fractions only on average. With `split.stratify` each class has the fractions,
and an added image may move a few others of its class.

If the data set has a split without val or test, the missing part is cut in the same way from the images in train. Given
val and test images are not moved. A near duplicate of one of them is not cut from train, so that a new part has no near
duplicate elsewhere.
"""

import hashlib
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from pipeline.base.errors import Fault, UserError, raise_if_any
from pipeline.base.text import join_names
from pipeline.config.params import Split
from pipeline.data import duplicates
from pipeline.data.duplicates import NearDuplicates
from pipeline.data.groups import Names, identities, rows_by_group
from pipeline.data.images import ImageInfo
from pipeline.dataset.split_table import SPLITS
from pipeline.sources.layout import ImageFile


@dataclass(frozen=True)
class Cut:
    """The images to assign, by their given split, and the splits that they can get."""

    given_split: str  # the given split of these images: empty if none is given for them, else train
    splits: tuple[str, ...]  # train, and each split that no image is given for; empty if nothing is to be assigned

    def includes(self, image_file: ImageFile) -> bool:
        """Whether this image is to be assigned."""
        return bool(self.splits) and image_file.given_split == self.given_split


@dataclass(frozen=True)
class Group:
    """Images in one split, because they are near duplicates."""

    key: str  # the smallest pixel hash among them
    labels: Mapping[str, int]  # class → number of images


@dataclass(frozen=True)
class Assignment:
    """The split and the group of each image. Element i of a list belongs to image i."""

    splits: list[str]
    keys: list[str]  # of their groups
    near: NearDuplicates
    moved_images: int  # so that each class is in each split


def assign_images(
    image_files: Sequence[ImageFile], infos: Sequence[ImageInfo], names: Names, cut: Cut, settings: Split
) -> Assignment:
    """The split of each image. Images that are near, or in one named group, are together.

    With `split.duplicates: ignore`, only a named group is together. Raises UserError as `assign` does.
    """
    labels, splits = [file.label for file in image_files], [file.given_split for file in image_files]
    near, moved_images = _find_near(infos, splits, settings), 0
    links = [link for rows in rows_by_group(names).values() for link in itertools.pairwise(rows)]
    left, right = np.array(links, np.int64).reshape(-1, 2).T
    before = near.component if settings.duplicates == "together" else np.arange(len(infos))
    component = duplicates.merge_components(before, left, right)
    keys = group_keys(component.tolist(), identities(names, duplicates.distinct_identities(image_files, infos)))
    if cut.splits:
        from_train = [row for row, split in enumerate(splits) if split not in ("val", "test")]
        groups = make_groups([keys[row] for row in from_train], [labels[row] for row in from_train])
        split_of, moved_images = assign(groups, settings, cut.splits, fixed_splits(keys, image_files, cut))
        splits = [split_of[key] if split == cut.given_split else split for key, split in zip(keys, splits, strict=True)]
    if settings.duplicates == "ignore" or (cut.given_split == "" and len(cut.splits) < len(SPLITS)):
        near = _find_near(infos, splits, settings)  # again: now each image has a split
    return Assignment(splits, keys, near, moved_images)


def _find_near(infos: Sequence[ImageInfo], splits: Sequence[str], settings: Split) -> NearDuplicates:
    """The near duplicates, and the number of pairs in different splits. An empty split counts as train."""
    hashes = np.array([info.phash for info in infos], np.uint64)
    numbers = np.array([SPLITS.index(split or "train") for split in splits], np.int64)
    return duplicates.near_duplicates(hashes, numbers, settings.phash_distance)


def find_cut(image_files: Sequence[ImageFile]) -> Cut:
    """The images without a given split; if all have one and a split is missing: those in train; else none."""
    given_splits = {image_file.given_split for image_file in image_files}
    splits = tuple(split for split in SPLITS if split == "train" or split not in given_splits)
    if "" in given_splits:
        return Cut("", splits)
    return Cut("train", splits if len(splits) > 1 else ())


def fixed_splits(keys: Sequence[str], image_files: Sequence[ImageFile], cut: Cut) -> dict[str, str]:
    """Group key → split, for each group with an image that is not to be assigned: the split of its other images.

    That is train if these are given as train. If no split is given for them, it is a split in which the group has an
    image: test, else val, else train.
    """
    given_splits = defaultdict(set)
    for key, image_file in zip(keys, image_files, strict=True):
        if not cut.includes(image_file):
            given_splits[key].add(image_file.given_split)
    return {key: cut.given_split or max(splits, key=SPLITS.index) for key, splits in given_splits.items()}


def group_keys(component: Sequence[int], hashes: Sequence[str]) -> list[str]:
    """The key of each image's group: the smallest hash of those with the same number in `component`."""
    smallest: dict[int, str] = {}
    for number, digest in zip(component, hashes, strict=True):
        smallest[number] = min(digest, smallest.get(number, digest))
    return [smallest[number] for number in component]


def make_groups(keys: Sequence[str], labels: Sequence[str]) -> list[Group]:
    """The groups of images with these keys and classes, sorted by key."""
    by_key: dict[str, Counter[str]] = defaultdict(Counter)
    for key, label in zip(keys, labels, strict=True):
        by_key[key][label] += 1
    return [Group(key, by_key[key]) for key in sorted(by_key)]


def position(key: str, settings: Split) -> Fraction:
    """The position of a group on the circle [0, 1), from its key and the seed; the fold begins at 0."""
    return (Fraction(_hash(settings.seed, key), 2**64) - Fraction(settings.fold, settings.folds)) % 1


def _hash(seed: int, text: str) -> int:
    """An integer of 64 bits, the hash of a seed and a text."""
    return int.from_bytes(hashlib.sha256(f"{seed} {text}".encode()).digest()[:8])


def stratified_positions(groups: Sequence[Group], settings: Split) -> dict[str, Fraction]:
    """Group key → position, such that each class has the fractions as nearly as its groups allow.

    The images of a class divide the circle evenly, in the order of the hashes of their groups. The position of a group
    is its middle. So an interval of length f has f of the class's images, up to the size of its largest group. A group
    with several classes counts for the class of most of its images. The circle begins at a hash of the class: otherwise
    many small classes would be rounded in the same direction.
    """
    by_class: dict[str, list[Group]] = defaultdict(list)
    for group in sorted(groups, key=lambda group: (_hash(settings.seed, group.key), group.key)):
        by_class[max(sorted(group.labels), key=group.labels.__getitem__)].append(group)
    positions = {}
    for label, members in by_class.items():
        image = 2**65 * settings.folds  # its length, in units that make all numbers whole: fractions are slow
        circle = image * sum(group.labels[label] for group in members)
        start = _hash(settings.seed, f"class {label}") * 2 * settings.folds  # less than the length of an image
        before = start - circle // settings.folds * settings.fold
        for group in members:
            size = image * group.labels[label]
            positions[group.key] = Fraction((before + size // 2) % circle, circle)
            before += size
    return positions


def shares(settings: Split) -> dict[str, Fraction]:
    """The share of each split; their sum is 1. A setting of 0.1 is exactly 1/10.

    With several folds, test has 1 / folds, so that all folds test every image once. Train and val share the rest in the
    ratio of split.fractions.
    """
    train, val, test = (
        Fraction(share).limit_denominator(10**6)
        for share in (settings.fractions.train, settings.fractions.val, settings.fractions.test)
    )
    if settings.folds > 1:
        test = Fraction(1, settings.folds)
        val *= (1 - test) / (train + val)
    return {"train": 1 - val - test, "val": val, "test": test}


def intervals(settings: Split) -> dict[str, tuple[Fraction, Fraction]]:
    """The interval [from, to) of the circle that belongs to each split: test, then val, then train."""
    share = shares(settings)
    test, val = share["test"], share["test"] + share["val"]
    return {"train": (val, Fraction(1)), "val": (test, val), "test": (Fraction(0), test)}


def assign(
    groups: Sequence[Group],
    settings: Split,
    splits: Sequence[str] = SPLITS,
    fixed: Mapping[str, str] = MappingProxyType({}),
) -> tuple[dict[str, str], int]:
    """Group key → split, and the number of images that are moved so that every class is in each of `splits`.

    The interval of a split that is not among `splits` belongs to train. The groups in `fixed` have their split.

    If a class has no image in a split by chance, a group is moved there from the split with the most images of the
    class: the group with the position nearest to the interval of the empty split. Only groups of this one class are
    moved, so no other class changes; with `stratify` also groups of several classes, if no other can be moved. Raises
    UserError for a class with too few images or groups.
    """
    spans = {split: span for split, span in intervals(settings).items() if split in splits}
    free = [group for group in groups if group.key not in fixed]
    if settings.stratify:
        positions = stratified_positions(free, settings)
    else:
        positions = {group.key: position(group.key, settings) for group in free}
    assigned = dict(fixed)
    for key, where in positions.items():
        assigned[key] = next((name for name, (start, end) in spans.items() if start <= where < end), "train")
    by_class: dict[str, list[Group]] = defaultdict(list)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for group in groups:
        for label, images in group.labels.items():
            by_class[label].append(group)
            counts[label][assigned[group.key]] += images
    filling = _Filling(assigned, counts, positions, spans, math.inf if settings.stratify else 1)
    moved_images = sum(filling.fill(label, by_class[label]) for label in sorted(by_class))
    return assigned, moved_images


@dataclass(frozen=True)
class _Filling:
    """Moves groups such that every class is in every split. `fill` changes `assigned` and `counts`."""

    assigned: dict[str, str]  # group key → split
    counts: dict[str, Counter[str]]  # class → split → images
    positions: Mapping[str, Fraction]  # of the groups that may be moved
    spans: Mapping[str, tuple[Fraction, Fraction]]  # the interval of each split
    most_classes: float  # a group with more classes is not moved

    def fill(self, label: str, groups: Sequence[Group]) -> int:
        """Give every split an image of one class. Returns the number of images moved. Raises UserError if it cannot."""
        empty = [split for split in self.spans if not self.counts[label][split]]
        movable = [g for g in groups if len(g.labels) <= self.most_classes and g.key in self.positions]
        fixed_splits = {self.assigned[group.key] for group in groups if group.key not in self.positions}
        free_splits = tuple(split for split in self.spans if split not in fixed_splits)
        moved_images = 0
        for split in empty:
            candidates = [group for group in movable if self._empties_no_split(group)]
            if len(movable) < len(free_splits) or not candidates:
                value = f"class {label!r} has {self.counts[label].total()} images in {len(movable)} groups of its own"
                reason = "near duplicates are one group, as are images of one split.group"
                allowed = f"at least {len(free_splits)}, for {join_names(free_splits)}"
                remedy = "add images, set split.stratify: true or another split.seed, or remove the class"
                raise UserError(Fault("classes", value, "missing", reason, allowed, remedy))
            moved_images += self._move(min(candidates, key=lambda group: self._rank(label, group, split)), split)
        return moved_images

    def _empties_no_split(self, group: Group) -> bool:
        """Whether every class of a group has other images in the split of the group."""
        split = self.assigned[group.key]
        return all(self.counts[label][split] > images for label, images in group.labels.items())

    def _rank(self, label: str, group: Group, split: str) -> tuple[int, int, Fraction, str]:
        """A sort key: the group with the smallest is moved to the empty split of a class."""
        distance = _distance(self.positions[group.key], self.spans[split])
        return len(group.labels), -self.counts[label][self.assigned[group.key]], distance, group.key

    def _move(self, group: Group, split: str) -> int:
        """Move a group to another split. Returns the number of its images."""
        for label, images in group.labels.items():
            self.counts[label][self.assigned[group.key]] -= images
            self.counts[label][split] += images
        self.assigned[group.key] = split
        return sum(group.labels.values())


def _distance(where: Fraction, interval: tuple[Fraction, Fraction]) -> Fraction:
    """The distance on the circle of a position outside an interval from this interval."""
    start, end = interval
    return min((start - where) % 1, (where - end) % 1)


def check_class_sizes(classes: Sequence[str], image_files: Sequence[ImageFile], cut: Cut) -> None:
    """Raise UserError with each class that has too few images: one for each split, or one in each given split."""
    counts = Counter((image_file.label, image_file.given_split) for image_file in image_files)
    given_splits = [split for split in SPLITS if split not in cut.splits]
    remedy, faults = "add images, or remove the class folder", []
    for label in classes:
        images = counts[label, ""] + counts[label, "train"]
        if missing := [split for split in given_splits if not counts[label, split]]:
            value = f"class {label!r} has no image to use in {', '.join(missing)}"
            allowed = f"at least 1 in each of {', '.join(SPLITS)}"
            faults.append(Fault("classes", value, "missing", allowed=allowed, remedy=remedy))
        elif images < len(cut.splits):
            value = f"class {label!r} has {images} images to use{' in train' if cut.given_split else ''}"
            allowed = f"{len(cut.splits)} or more: {', '.join(cut.splits)}"
            faults.append(Fault("classes", value, "missing", allowed=allowed, remedy=remedy))
    raise_if_any(faults)
