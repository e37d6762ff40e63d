"""What became of every image file, from split.csv: counts, what was left out and why, and which images belong together.

Everything is counted; only so many are shown, so that the page stays small for any number of files.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.data import decoders, split_table
from pipeline.data.split_table import BY_HAND, CONFLICT, DUPLICATE, SPLITS
from pipeline.data.suspects import Suspect

MOST_REASONS, MOST_OF_A_REASON = 20, 12  # left out: reasons, and files of each, that are shown
MOST_GROUPS, MOST_OF_A_GROUP = 8, 4  # images that belong together: groups, and images of each, that are shown
MOST_OF_AN_ISSUE = 6  # suspicious images of each issue that are shown

Rows = Sequence[dict[str, str]]  # of split.csv


@dataclass(frozen=True)
class LeftOut:
    """A file that is not used."""

    path: str
    label: str
    same: tuple[str, ...]  # paths of the same image: the one that is used instead, or those in other classes
    why: str  # what a person wrote who excluded it; empty for another reason
    is_picture: bool  # it can be decoded


@dataclass(frozen=True)
class Reason:
    """All files that were left out for one reason, and the first of them."""

    name: str
    count: int
    first: tuple[LeftOut, ...]


@dataclass(frozen=True)
class Group:
    """Images that belong together, and the first of them."""

    parts: tuple[str, ...]  # one, but for a data set that has a split already
    count: int
    first: tuple[str, ...]


@dataclass(frozen=True)
class Issue:
    """All images that are suspicious for one reason, and the worst of them."""

    name: str
    count: int
    first: tuple[Suspect, ...]


@dataclass(frozen=True)
class Audit:
    """What became of all files."""

    by_class: dict[str, dict[str, int]]  # class → train, val, test and excluded → files
    reasons: tuple[Reason, ...]  # the most frequent first, at most MOST_REASONS
    reasons_in_all: int
    groups: tuple[Group, ...]  # the largest first, at most MOST_GROUPS
    groups_in_all: int
    in_groups: int  # images
    issues: tuple[Issue, ...]  # those that some image has, in the order of the table

    def total(self, part: str) -> int:
        return sum(counts[part] for counts in self.by_class.values())

    def largest(self, most: int) -> list[tuple[str, dict[str, int]]]:
        """The classes with the most files, at most so many, by name, each with its numbers of files."""
        order = sorted(self.by_class, key=lambda label: (-sum(self.by_class[label].values()), label))
        return [(label, self.by_class[label]) for label in sorted(order[:most])]

    @property
    def files(self) -> int:
        return sum(self.total(part) for part in (*SPLITS, "excluded"))


def of(rows: Rows, suspects: Sequence[Suspect] = ()) -> Audit:
    """The audit of all rows of split.csv and of suspects.csv."""
    reasons, groups = _reasons(rows), _groups(rows)
    number = Counter((row["class"], row["split"] or "excluded") for row in rows)
    return Audit(
        {
            label: {part: number[label, part] for part in (*SPLITS, "excluded")}
            for label in sorted({c for c, _ in number})
        },
        reasons[:MOST_REASONS],
        len(reasons),
        groups[:MOST_GROUPS],
        len(groups),
        sum(group.count for group in groups),
        _issues(suspects),
    )


def _issues(suspects: Sequence[Suspect]) -> tuple[Issue, ...]:
    by_name = defaultdict(list)
    for suspect in suspects:
        by_name[suspect.issue].append(suspect)
    return tuple(Issue(name, len(found), tuple(found[:MOST_OF_AN_ISSUE])) for name, found in by_name.items())


def _reasons(rows: Rows) -> tuple[Reason, ...]:
    by_reason, same = defaultdict(list), _same_pixels(rows)
    for row in rows:
        if row["reason"]:
            by_reason[split_table.kind(row["reason"])].append(row)
    return tuple(
        Reason(name, len(found), tuple(_left_out(row, same) for row in found[:MOST_OF_A_REASON]))
        for name, found in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    )


def _left_out(row: dict[str, str], same: dict[str, list[str]]) -> LeftOut:
    kind, others, why = split_table.kind(row["reason"]), [], ""
    if kind == CONFLICT:
        others = [path for path in same[row["pixels"]] if path != row["path"]]
    elif kind == DUPLICATE:
        others = [row["reason"].partition(" of ")[2]]
    elif kind == BY_HAND:
        why = row["reason"].partition(": ")[2]
    # Only files of which every machine can show the picture: a decoder of HEIC is optional.
    is_picture = kind in (DUPLICATE, CONFLICT, BY_HAND, decoders.TOO_SMALL)
    return LeftOut(row["path"], row["class"], tuple(others[:MOST_OF_A_GROUP]), why, is_picture)


def _same_pixels(rows: Rows) -> dict[str, list[str]]:
    """Images with conflicting labels, by the hash of their pixels."""
    same = defaultdict(list)
    for row in rows:
        if row["reason"] == CONFLICT:
            same[row["pixels"]].append(row["path"])
    return same


def _groups(rows: Rows) -> tuple[Group, ...]:
    by_key = defaultdict(list)
    for row in rows:
        if row["group"]:
            by_key[row["group"]].append(row)
    groups = [
        Group(
            tuple(part for part in SPLITS if part in {row["split"] for row in found}),
            len(found),
            tuple(row["path"] for row in found[:MOST_OF_A_GROUP]),
        )
        for found in by_key.values()
        if len(found) > 1
    ]
    return tuple(sorted(groups, key=lambda group: (-group.count, group.first)))
