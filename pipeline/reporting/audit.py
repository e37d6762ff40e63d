"""The split of all image files, from split.csv: counts, why files are excluded, and which images belong together.

Everything is counted; only a limited number of examples is on a page, so that it stays small for any number of files.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from pipeline.data import decoders
from pipeline.data.suspects import Suspect
from pipeline.dataset import split_table
from pipeline.dataset.split_table import BY_HAND, CONFLICT, DUPLICATE, SPLITS, ImageRow

PARTS = (*SPLITS, "excluded")
MOST_REASONS, MOST_OF_A_REASON = 20, 12  # reasons for an exclusion on a page, and files of each
MOST_GROUPS, MOST_OF_A_GROUP = 8, 4  # groups of images on a page, and images of each
MOST_OF_AN_ISSUE = 6  # suspicious images of each issue on a page

Rows = Sequence[ImageRow]  # of split.csv
Item = TypeVar("Item")


@dataclass(frozen=True)
class ExcludedFile:
    """A file that is not used."""

    path: str
    label: str
    same_images: tuple[str, ...]  # paths of the same image: the one that is used instead, or those in other classes
    comment: str  # of the person who excluded it; empty for another reason
    is_picture: bool  # it can be decoded


@dataclass(frozen=True)
class Examples(Generic[Item]):
    """A reason for an exclusion, or an issue of suspicious images: the number of its files, and the first of them."""

    name: str
    count: int
    examples: tuple[Item, ...]


@dataclass(frozen=True)
class Group:
    """Images that belong together: their splits, their number, and the paths of the first of them."""

    splits: tuple[str, ...]  # one, but for a data set that has a split already
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    """The counts of all files, and examples for a page."""

    class_counts: dict[str, dict[str, int]]  # class → part → files
    reasons: tuple[Examples[ExcludedFile], ...]  # the most frequent first, at most MOST_REASONS
    reason_count: int
    groups: tuple[Group, ...]  # the largest first, at most MOST_GROUPS
    group_count: int
    divided_group_count: int  # groups with images in more than one split
    grouped_image_count: int
    issues: tuple[Examples[list[Suspect]], ...]  # in the order of the table; an example has all issues of one image
    usual_sides: tuple[float, float]  # pixels; of nine in ten used images, as a square of equal area

    def total(self, part: str) -> int:
        return sum(counts[part] for counts in self.class_counts.values())

    def largest_classes(self, limit: int) -> list[tuple[str, dict[str, int]]]:
        """The classes with the most files, at most `limit`, by name, each with its numbers of files."""
        order = sorted(self.class_counts.items(), key=lambda item: (-sum(item[1].values()), item[0]))
        return sorted(order[:limit], key=lambda item: item[0])

    @property
    def file_count(self) -> int:
        return sum(map(self.total, PARTS))


def summarize_split(rows: Rows, suspects: Sequence[Suspect] = ()) -> Audit:
    """The audit of all rows of split.csv and of suspects.csv."""
    reasons, groups = _reasons(rows), _groups(rows)
    by_path = _by_key(suspects, lambda suspect: suspect.path)
    firsts = _by_key((images[0] for images in by_path.values()), lambda suspect: suspect.issue)  # each image once
    sides = [math.sqrt(row.width * row.height) for row in rows if row.split] or [0.0]
    counts = Counter((row.label, row.split or "excluded") for row in rows)
    return Audit(
        class_counts={label: {part: counts[label, part] for part in PARTS} for label in sorted({c for c, _ in counts})},
        reasons=reasons[:MOST_REASONS],
        reason_count=len(reasons),
        groups=groups[:MOST_GROUPS],
        group_count=len(groups),
        divided_group_count=sum(len(group.splits) > 1 for group in groups),
        grouped_image_count=sum(group.count for group in groups),
        issues=tuple(
            Examples(name, len(images), tuple(by_path[one.path] for one in firsts.get(name, [])[:MOST_OF_AN_ISSUE]))
            for name, images in _by_key(suspects, lambda suspect: suspect.issue).items()
        ),
        usual_sides=(float(np.percentile(sides, 5)), float(np.percentile(sides, 95))),
    )


def _by_key(items: Iterable[Item], key: Callable[[Item], str]) -> dict[str, list[Item]]:
    """Key → its items, in their order, without the items whose key is empty."""
    lists: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        if name := key(item):
            lists[name].append(item)
    return lists


def _reasons(rows: Rows) -> tuple[Examples[ExcludedFile], ...]:
    conflicts = _by_key((row for row in rows if row.reason == CONFLICT), lambda row: row.pixels)
    by_reason = _by_key(rows, lambda row: split_table.kind(row.reason))
    return tuple(
        Examples(name, len(files), tuple(_excluded_file(row, conflicts) for row in files[:MOST_OF_A_REASON]))
        for name, files in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    )


def _excluded_file(row: ImageRow, conflicts: dict[str, list[ImageRow]]) -> ExcludedFile:
    """The file of a row. `conflicts`: the rows of images with conflicting labels, by the hash of their pixels."""
    kind, same_images, comment = split_table.kind(row.reason), [], ""
    if kind == CONFLICT:
        same_images = [other.path for other in conflicts[row.pixels] if other.path != row.path]
    elif kind == DUPLICATE:
        same_images = [row.reason.partition(" of ")[2]]
    elif kind == BY_HAND:
        comment = row.reason.partition(": ")[2]
    # Only files of which every machine can show the picture: a decoder of HEIC is optional.
    is_picture = kind in (DUPLICATE, CONFLICT, BY_HAND, decoders.TOO_SMALL)
    return ExcludedFile(row.path, row.label, tuple(same_images[:MOST_OF_A_GROUP]), comment, is_picture)


def _groups(rows: Rows) -> tuple[Group, ...]:
    groups = [
        Group(
            tuple(split for split in SPLITS if split in {row.split for row in images}),
            len(images),
            tuple(row.path for row in images[:MOST_OF_A_GROUP]),
        )
        for images in _by_key(rows, lambda row: row.group).values()
        if len(images) > 1
    ]
    return tuple(sorted(groups, key=lambda group: (-group.count, group.examples)))
