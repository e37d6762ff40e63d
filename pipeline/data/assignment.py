"""Which split an image belongs to.

Near duplicates form a group, and a group stays together. Its split follows from a seeded hash of its content alone. So
an image changes its split only when a near duplicate of it is added. The price: the fractions hold on average only.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from pipeline.base.errors import UserError
from pipeline.config.params import Split
from pipeline.data.folders import ImageFile
from pipeline.data.split_table import SPLITS


@dataclass(frozen=True)
class Group:
    """Images in one split, because they are near duplicates."""

    key: str  # the smallest pixel hash among them
    labels: Mapping[str, int]  # class → number of images


def make_groups(
    component: Sequence[int], labels: Sequence[str], pixels: Sequence[str]
) -> tuple[list[str], list[Group]]:
    """The group key of each image, and all groups sorted by key.

    Images with the same number in `component` form a group; `labels` and `pixels` are their classes and pixel hashes.
    """
    members = defaultdict(list)
    for image, number in enumerate(component):
        members[number].append(image)
    keys = {number: min(pixels[image] for image in group) for number, group in members.items()}
    groups = [Group(keys[number], Counter(labels[image] for image in group)) for number, group in members.items()]
    return [keys[number] for number in component], sorted(groups, key=lambda group: group.key)


def position(key: str, settings: Split) -> Fraction:
    """The position of a group on the circle [0, 1): from its key and the seed, turned so that the fold begins at 0."""
    number = int.from_bytes(hashlib.sha256(f"{settings.seed} {key}".encode()).digest()[:8])
    return (Fraction(number, 2**64) - Fraction(settings.fold, settings.folds)) % 1


def intervals(settings: Split) -> dict[str, tuple[Fraction, Fraction]]:
    """The interval [from, to) of the circle that belongs to each split: test, then val, then train.

    0.1 is taken as 1/10, so the test intervals of all folds cover the circle exactly.
    """
    test = Fraction(settings.fractions.test).limit_denominator(10**6)
    val = test + Fraction(settings.fractions.val).limit_denominator(10**6)
    return {"train": (val, Fraction(1)), "val": (test, val), "test": (Fraction(0), test)}


def assign(groups: Sequence[Group], settings: Split) -> tuple[dict[str, str], int]:
    """The split of each group by key, and how many images were moved so that every class is in every split.

    If a class has no image in a split by chance, a group is moved there from the split with the most images of the
    class: the group with the position nearest to the interval of the empty split. Only groups of this one class are
    moved, so no other class changes. Raises UserError for a class with too few images or groups.
    """
    spans = intervals(settings)
    splits = {}
    for group in groups:
        where = position(group.key, settings)
        splits[group.key] = next(split for split, (start, end) in spans.items() if start <= where < end)
    by_class: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        for label in group.labels:
            by_class[label].append(group)
    moved = sum(_fill(label, by_class[label], splits, settings) for label in sorted(by_class))
    return splits, moved


def _fill(label: str, groups: Sequence[Group], splits: dict[str, str], settings: Split) -> int:
    """Give every split an image of one class by changing `splits`; the number of images moved."""
    counts = Counter(dict.fromkeys(SPLITS, 0))
    for group in groups:
        counts[splits[group.key]] += group.labels[label]
    empty = [split for split in SPLITS if not counts[split]]
    movable = [group for group in groups if len(group.labels) == 1]
    if empty and len(movable) < len(SPLITS):
        raise UserError(
            f"class {label!r} has {counts.total()} images in {len(movable)} groups of its own (near duplicates are one "
            f"group); needed: at least 3, for train, val and test; add images, or remove the class folder"
        )
    moved = 0
    for split in empty:
        span = intervals(settings)[split]
        spare = [group for group in movable if counts[splits[group.key]] > group.labels[label]]  # empties no split
        ranked = [
            (-counts[splits[g.key]], _distance(position(g.key, settings), span), g.key, g.labels[label]) for g in spare
        ]
        _, _, key, size = min(ranked)
        counts[splits[key]] -= size
        counts[split] += size
        splits[key] = split
        moved += size
    return moved


def _distance(where: Fraction, interval: tuple[Fraction, Fraction]) -> Fraction:
    """How far a position outside an interval is from it, on the circle."""
    start, end = interval
    return min((start - where) % 1, (where - end) % 1)


def check_class_sizes(classes: Sequence[str], image_files: Sequence[ImageFile]) -> None:
    """Raise UserError for a class with fewer than 3 usable images, or without one in each given split."""
    counts = Counter((image_file.label, image_file.given_split) for image_file in image_files)
    is_given = any(image_file.given_split for image_file in image_files)
    for label in classes:
        lacking = [split for split in SPLITS if not counts[label, split]]
        if is_given and lacking:
            raise UserError(
                f"class {label!r} has no image to use in {', '.join(lacking)}; needed: at least 1 in each of "
                f"{', '.join(SPLITS)}; add images, or remove the class folder"
            )
        if not is_given and counts[label, ""] < len(SPLITS):
            raise UserError(
                f"class {label!r} has {counts[label, '']} images to use; needed: at least 3, one each for "
                f"{', '.join(SPLITS)}; add images, or remove the class folder"
            )
