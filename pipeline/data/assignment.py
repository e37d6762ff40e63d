"""Which split an image belongs to.

Near duplicates form a group, and a group stays together. Its split follows from a seeded hash of its content alone. So
an image changes its split only when a near duplicate of it is added. The price: the fractions hold on average only.
With `split.stratify` each class has the fractions, and an added image may move a few others of its class.

If the data set has a split without val or test, the missing part is cut in the same way from the images in train. Given
val and test images stay where they are. An image that is near one of them is not cut from train, so that a new part
has no near duplicate elsewhere.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from pipeline.base.errors import UserError
from pipeline.config.params import Split
from pipeline.data.layout import ImageFile, as_list
from pipeline.data.split_table import SPLITS

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Cut:
    """Which images are to be assigned, and to which splits."""

    given: str  # the given split of these images: empty if none is given for them, else train
    splits: tuple[str, ...]  # train, and each split that no image is given for; empty if nothing is to be assigned

    def includes(self, image_file: ImageFile) -> bool:
        """Whether this image is to be assigned."""
        return bool(self.splits) and image_file.given_split == self.given


@dataclass(frozen=True)
class Group:
    """Images in one split, because they are near duplicates."""

    key: str  # the smallest pixel hash among them
    labels: Mapping[str, int]  # class → number of images


def find_cut(image_files: Sequence[ImageFile]) -> Cut:
    """The images without a given split; if all have one and a split is missing: those in train; else none."""
    given = {image_file.given_split for image_file in image_files}
    splits = tuple(split for split in SPLITS if split == "train" or split not in given)
    if "" in given:
        return Cut("", splits)
    return Cut("train", splits if len(splits) > 1 else ())


def fixed_splits(keys: Sequence[str], image_files: Sequence[ImageFile], cut: Cut) -> dict[str, str]:
    """Group key → split, for each group with images that are not to be assigned: its other images go there.

    That is train if they are in train now. If nothing is given for them, they go where the group has an image: to test,
    else val, else train.
    """
    given = defaultdict(set)
    for key, image_file in zip(keys, image_files, strict=True):
        if not cut.includes(image_file):
            given[key].add(image_file.given_split)
    return {key: cut.given or max(splits, key=SPLITS.index) for key, splits in given.items()}


def make_groups(
    component: Sequence[int], labels: Sequence[str], pixels: Sequence[str]
) -> tuple[list[str], list[Group]]:
    """The group key of each image, and all groups sorted by key.

    Images with the same number in `component` form a group; `labels` and `pixels` are their classes and pixel hashes.
    """
    members = defaultdict(list)
    for image, number in enumerate(component):
        members[number].append(image)
    key_of = {number: min(pixels[image] for image in group) for number, group in members.items()}
    keys = [key_of[number] for number in component]
    return keys, groups_of(keys, labels)


def groups_of(keys: Sequence[str], labels: Sequence[str]) -> list[Group]:
    """The groups of images with these keys and classes, sorted by key."""
    by_key: dict[str, Counter[str]] = defaultdict(Counter)
    for key, label in zip(keys, labels, strict=True):
        by_key[key][label] += 1
    return [Group(key, by_key[key]) for key in sorted(by_key)]


def position(key: str, settings: Split) -> Fraction:
    """The position of a group on the circle [0, 1): from its key and the seed, turned so that the fold begins at 0."""
    return (Fraction(_hashed(settings.seed, key), 2**64) - Fraction(settings.fold, settings.folds)) % 1


def _hashed(seed: int, text: str) -> int:
    """A number of 64 bits from a seed and a text."""
    return int.from_bytes(hashlib.sha256(f"{seed} {text}".encode()).digest()[:8])


def stratified_positions(groups: Sequence[Group], settings: Split) -> dict[str, Fraction]:
    """Positions by which each class has the fractions, as near as its groups allow: by group key.

    The images of a class divide the circle evenly, in the order of the hashes of their groups. A group is where its
    middle is. So an interval of length f has f of the class's images, up to the size of its largest group. A group with
    several classes counts for the class of most of its images. The circle begins at a place that the hash of the class
    decides: otherwise many small classes would be rounded in the same direction.
    """
    by_class: dict[str, list[Group]] = defaultdict(list)
    for group in sorted(groups, key=lambda group: (_hashed(settings.seed, group.key), group.key)):
        by_class[max(sorted(group.labels), key=group.labels.__getitem__)].append(group)
    positions = {}
    for label, members in by_class.items():
        image = 2**65 * settings.folds  # its length, in units that make all numbers whole: fractions are slow
        circle = image * sum(group.labels[label] for group in members)
        start = _hashed(settings.seed, f"class {label}") * 2 * settings.folds  # less than the length of an image
        before = start - circle // settings.folds * settings.fold
        for group in members:
            size = image * group.labels[label]
            positions[group.key] = Fraction((before + size // 2) % circle, circle)
            before += size
    return positions


def intervals(settings: Split) -> dict[str, tuple[Fraction, Fraction]]:
    """The interval [from, to) of the circle that belongs to each split: test, then val, then train.

    0.1 is taken as 1/10, so the test intervals of all folds cover the circle exactly.
    """
    test = Fraction(settings.fractions.test).limit_denominator(10**6)
    val = test + Fraction(settings.fractions.val).limit_denominator(10**6)
    return {"train": (val, Fraction(1)), "val": (test, val), "test": (Fraction(0), test)}


def assign(
    groups: Sequence[Group], settings: Split, splits: Sequence[str] = SPLITS, fixed: Mapping[str, str] = NOTHING
) -> tuple[dict[str, str], int]:
    """The split of each group by key, and how many images were moved so that every class is in each of `splits`.

    The interval of a split that is not among `splits` belongs to train. The groups in `fixed` have their split.

    If a class has no image in a split by chance, a group is moved there from the split with the most images of the
    class: the group with the position nearest to the interval of the empty split. Only groups of this one class are
    moved, so no other class changes. Raises UserError for a class with too few images or groups.
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
    for group in groups:
        for label in group.labels:
            by_class[label].append(group)
    fill = _Filling(assigned, positions, spans)
    moved = sum(fill.fill(label, by_class[label]) for label in sorted(by_class))
    return assigned, moved


@dataclass(frozen=True)
class _Filling:
    """Moves groups, so that every class is in every split."""

    assigned: dict[str, str]  # group key → split; `fill` changes it
    positions: Mapping[str, Fraction]  # of the groups that may be moved
    spans: Mapping[str, tuple[Fraction, Fraction]]  # the interval of each split

    def fill(self, label: str, groups: Sequence[Group]) -> int:
        """Give every split an image of one class; the number of images moved. Raises UserError if it cannot."""
        counts = Counter(dict.fromkeys(self.spans, 0))
        for group in groups:
            counts[self.assigned[group.key]] += group.labels[label]
        empty = [split for split in self.spans if not counts[split]]
        movable = [group for group in groups if len(group.labels) == 1 and group.key in self.positions]
        held = {self.assigned[group.key] for group in groups if group.key not in self.positions}
        needed = tuple(split for split in self.spans if split not in held)
        if empty and len(movable) < len(needed):
            raise UserError(
                f"class {label!r} has {counts.total()} images in {len(movable)} groups of its own (near duplicates are "
                f"one group, as are images of one split.group); needed: at least {len(needed)}, for {as_list(needed)}; "
                f"add images, set split.stratify: true or another split.seed, or remove the class"
            )
        return sum(self._move(label, movable, counts, split) for split in empty)

    def _move(self, label: str, movable: Sequence[Group], counts: Counter[str], split: str) -> int:
        """Move one group to an empty split; the number of its images. Changes `counts` (split → images)."""
        spare = [g for g in movable if counts[self.assigned[g.key]] > g.labels[label]]  # empties no split
        ranked = [
            (-counts[self.assigned[g.key]], _distance(self.positions[g.key], self.spans[split]), g.key, g.labels[label])
            for g in spare
        ]
        _, _, key, size = min(ranked)
        counts[self.assigned[key]] -= size
        counts[split] += size
        self.assigned[key] = split
        return size


def _distance(where: Fraction, interval: tuple[Fraction, Fraction]) -> Fraction:
    """How far a position outside an interval is from it, on the circle."""
    start, end = interval
    return min((start - where) % 1, (where - end) % 1)


def check_class_sizes(classes: Sequence[str], image_files: Sequence[ImageFile], cut: Cut) -> None:
    """Raise UserError for a class with too few usable images: to have one in each split, or in each given split."""
    counts = Counter((image_file.label, image_file.given_split) for image_file in image_files)
    for label in classes:
        lacking = [split for split in SPLITS if split not in cut.splits and not counts[label, split]]
        if lacking:
            raise UserError(
                f"class {label!r} has no image to use in {', '.join(lacking)}; needed: at least 1 in each of "
                f"{', '.join(SPLITS)}; add images, or remove the class folder"
            )
        images = counts[label, ""] + counts[label, "train"]
        if images < len(cut.splits):
            where = " in train" if cut.given else ""
            raise UserError(
                f"class {label!r} has {images} images to use{where}; needed: at least {len(cut.splits)}, one each for "
                f"{', '.join(cut.splits)}; add images, or remove the class folder"
            )
