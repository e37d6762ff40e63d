"""The split of all image files, from split.csv: counts, why files are excluded, and which images belong together.

Everything is counted; only a limited number of examples is on a page, so that it stays small for any number of files.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np

from pipeline.data import decoders
from pipeline.data.suspects import Suspect
from pipeline.dataset import split_table
from pipeline.dataset.split_table import BY_HAND, CONFLICT, DUPLICATE, SPLITS, ImageRow

PARTS = (*SPLITS, "excluded")
MOST_REASONS, MOST_OF_A_REASON = 20, 12  # reasons for an exclusion on a page, and files of each
MOST_GROUPS, MOST_OF_A_GROUP = 8, 4  # groups of images on a page, and images of each
MOST_OF_AN_ISSUE = 6  # suspicious images of each issue on a page
# The reasons of files of which every machine can show the picture: a decoder of HEIC is optional.
WITH_PICTURE = (DUPLICATE, CONFLICT, BY_HAND, decoders.TOO_SMALL)

Rows = Sequence[ImageRow]  # of split.csv
Item = TypeVar("Item")


@dataclass(frozen=True)
class Audit:
    """The counts of all files, and lists of what became of them. The first of each list are shown."""

    class_counts: dict[str, dict[str, int]]  # class → part → files
    reasons: dict[str, list[ImageRow]]  # reason for an exclusion → its files; the most frequent reason first
    groups: list[list[ImageRow]]  # images that belong together; the largest group first
    issues: dict[str, list[Suspect]]  # issue → its suspicious images; in the order of the table
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

    @property
    def shown_reasons(self) -> dict[str, list[ImageRow]]:
        return {name: rows[:MOST_OF_A_REASON] for name, rows in islice(self.reasons.items(), MOST_REASONS)}

    @property
    def shown_groups(self) -> list[list[ImageRow]]:
        return [group[:MOST_OF_A_GROUP] for group in self.groups[:MOST_GROUPS]]

    @property
    def shown_issues(self) -> dict[str, list[list[Suspect]]]:
        """Issue → its images, each with all of its issues. An image is shown once, at the first of its issues."""
        by_path = _by_key((one for suspects in self.issues.values() for one in suspects), lambda one: one.path)
        firsts = _by_key(by_path.values(), lambda images: images[0].issue)
        return {name: firsts.get(name, [])[:MOST_OF_AN_ISSUE] for name in self.issues}

    def same_images(self, row: ImageRow) -> list[str]:
        """The paths of the same image as an excluded one: the one that is used instead, or those in other classes."""
        if row.reason == CONFLICT:
            same = [other.path for other in self.reasons[CONFLICT] if other.pixels == row.pixels and other != row]
            return same[:MOST_OF_A_GROUP]
        return [row.reason.partition(" of ")[2]] if split_table.kind(row.reason) == DUPLICATE else []


def summarize_split(rows: Rows, suspects: Sequence[Suspect] = ()) -> Audit:
    """The audit of all rows of split.csv and of suspects.csv."""
    reasons = _by_key(rows, lambda row: split_table.kind(row.reason))
    groups = [images for images in _by_key(rows, lambda row: row.group).values() if len(images) > 1]
    sides = [math.sqrt(row.width * row.height) for row in rows if row.split] or [0.0]
    counts = Counter((row.label, row.split or "excluded") for row in rows)
    return Audit(
        class_counts={label: {part: counts[label, part] for part in PARTS} for label in sorted({c for c, _ in counts})},
        reasons=dict(sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))),
        groups=sorted(groups, key=lambda images: (-len(images), [row.path for row in images])),
        issues=_by_key(suspects, lambda suspect: suspect.issue),
        usual_sides=(float(np.percentile(sides, 5)), float(np.percentile(sides, 95))),
    )


def _by_key(items: Iterable[Item], key: Callable[[Item], str]) -> dict[str, list[Item]]:
    """Key → its items, in their order, without the items whose key is empty."""
    lists: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        if name := key(item):
            lists[name].append(item)
    return lists
