"""Stage `split`: inspect every image once, and assign it to train, val or test.

    python -m pipeline.split         reads paths.images; writes paths.split and data.json in paths.metrics

Images are the files below the class folders of `paths.images` (below folders for train, val and test, in any of
SPELLINGS, if it has just these: then that is the split). A class is never called as a part is: such a folder is
understood or refused. Files beside the class folders, such as a licence, are no images.

Near duplicates form groups that stay together. A group's part follows from a seeded hash of its content alone, so a
image changes its part only when a near duplicate of it is added. The price: the fractions hold on average.
"""

import hashlib
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import imagehash
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from pipeline import stage
from pipeline.base import files, linux, threads
from pipeline.base.errors import UserError
from pipeline.config.params import Params
from pipeline.data import images
from pipeline.data.images import ImageInfo

SPLITS = ("train", "val", "test")
SPELLINGS = {  # in lower case; how data sets that come with a split name its folders → the part
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
HEADER = ("path", "class", "split", "reason", "width", "height", "pixels", "phash", "group")
DUPLICATE, CONFLICT = "duplicate", "conflicting labels"
CANDIDATES = 2**21  # pairs looked at in one go when near duplicates are sought: about 100 MB


@dataclass(frozen=True)
class ImageFile:
    """A file found below a class folder."""

    path: str  # relative to paths.images, with /
    label: str
    given: str  # the part whose folder it lies in; empty if the split is ours to make


@dataclass(frozen=True)
class Near:
    """What comparing all perceptual hashes found."""

    component: NDArray[np.int64]  # [N]: images with the same number belong together
    pairs: int  # pairs of images within the threshold
    pairs_across: int  # those of them whose images lie in different given parts


@dataclass(frozen=True)
class Group:
    """Images that share a part, because they are near duplicates."""

    key: str  # the smallest pixel hash among them
    labels: Mapping[str, int]  # class → number of images


@dataclass(frozen=True)
class Rule:
    """How groups are dealt to the parts. With folds > 1, `test` is 1 / folds."""

    seed: int
    val: float
    test: float
    folds: int
    fold: int


@dataclass(frozen=True)
class Row:
    """A line of split.csv."""

    image_file: ImageFile
    part: str  # empty if excluded
    reason: str  # empty if kept
    info: ImageInfo
    group: str  # the group's key; empty if excluded


# ---- what there is ----


def find_image_files(folder: Path) -> tuple[list[ImageFile], list[str]]:
    """All images below `folder`, sorted by path (as UTF-8 bytes), and all classes, sorted.

    Raises UserError for a layout that cannot be meant, and for a name that is not UTF-8.
    """
    paths = _files(folder)
    classes = _folders(folder)
    given = _given_split(folder, classes)
    if given:
        classes = sorted({name for top in given for name in _folders(folder / top)})
    _check_class_names(folder, classes)
    if len(classes) < 2:
        found = f"only one class folder ({classes[0]!r})" if classes else "no class folder"
        raise UserError(f"{folder}: {found}; needed: at least 2, each with the images of one class")
    image_files = []
    for path in paths:
        top, *inner = path.split("/") if given else ["", *path.split("/")]
        if len(inner) > 1:  # else a file beside the class folders
            image_files.append(ImageFile(path, inner[0], given.get(top, "")))
    return image_files, classes


def _folders(folder: Path) -> list[str]:
    """The names of the folders in a folder, but junk, sorted."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not files.is_junk(Path(path.name)))


def _files(folder: Path) -> list[str]:
    """The relative paths of all files below `folder` but junk, sorted as their UTF-8 bytes are."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; run the download stage first (dvc repro does)")
    found = []
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if files.is_junk(relative) or (path.is_dir() and not path.is_symlink()):
            continue
        try:
            relative.as_posix().encode("utf-8")
        except UnicodeEncodeError:
            name = ascii(path.as_posix())
            raise UserError(f"{name}: the name is not UTF-8; rename it (convmv -f latin1 -t utf8 does)") from None
        if (
            "\r" in relative.as_posix()
        ):  # Python 3.11 and 3.12 write it to a csv file unquoted, and read a line's end there
            raise UserError(f"{path.as_posix()!r}: a carriage return in a name; rename or remove it")
        if not path.is_file():
            raise UserError(f"{path}: neither a file nor a folder (a link?); remove it, or put the file there")
        found.append(relative.as_posix())
    return sorted(found)  # code points sort as their UTF-8 bytes do


def _part(name: str) -> str:
    """The part that a folder of this name stands for, in any usual spelling; empty if for none."""
    return SPELLINGS.get(name.lower(), "")


def _given_split(folder: Path, tops: Sequence[str]) -> dict[str, str]:
    """Top folder → its part, if the top folders are the parts of a split; else empty.

    Raises UserError if they are so by halves: a part is missing, is there twice, or stands beside a class folder.
    """
    named = {top: part for top in sorted(tops, key=_place_of_part) if (part := _part(top))}
    others = [top for top in tops if top not in named]
    missing = [part for part in SPLITS if part not in named.values()]
    if not named:
        return {}
    if len(set(named.values())) < len(named):
        raise UserError(
            f"{folder}: folders {' and '.join(named)}: one part of a split in two spellings; allowed: one folder for "
            f"each of {', '.join(SPLITS)}; put together what belongs together"
        )
    if others:
        shown = ", ".join(others[:5]) + (", …" if len(others) > 5 else "")
        raise UserError(
            f"{folder}: {', '.join(named)} beside class folders {shown}; allowed: either alone; move or remove one of "
            f"the two (a class that is really called so: rename its folder, such as to {next(iter(named))}_class)"
        )
    if missing:
        raise UserError(
            f"{folder}: folders {' and '.join(named)}, but no {' and no '.join(missing)}; allowed: all of "
            f"{', '.join(SPLITS)} (their split is kept), or class folders at the top (the split is made)"
        )
    return named


def _place_of_part(top: str) -> tuple[int, str]:
    """Folders in the order of their parts: train, val, test."""
    return SPLITS.index(_part(top) or "test"), top


def _check_class_names(folder: Path, classes: Sequence[str]) -> None:
    """Raise UserError for a class folder with the name of a split: there is one level of folders too many."""
    for name in filter(_part, classes):
        raise UserError(
            f"{folder}: a class folder called {name!r}, as a part of a split is; allowed: any other name; take out the "
            f"level of folders that is too many, or rename the class"
        )


def perceptual_hash(image_file: images.RGB) -> int:
    """The 64-bit pHash of an image (the signs of its lowest 8 × 8 frequencies, against their median)."""
    bits = imagehash.phash(image_file).hash
    return int.from_bytes(np.packbits(bits).tobytes())


# ---- what is kept ----


def exclusions(image_files: Sequence[ImageFile], infos: Sequence[ImageInfo]) -> list[str]:
    """Why each image is excluded; empty if it is kept.

    Of exact duplicates (equal pixels) in one class one is kept: that in test, then val, then train if the split is
    given, so that no test image is trained on; then the smallest path. With two classes none is kept.
    """
    reasons = [info.reason for info in infos]
    for rows in exact_groups(infos):
        if len({image_files[row].label for row in rows}) > 1:
            for row in rows:
                reasons[row] = CONFLICT
            continue
        kept = min(rows, key=lambda row: (-SPLITS.index(image_files[row].given or "train"), image_files[row].path))
        for row in rows:
            if row != kept:
                reasons[row] = f"{DUPLICATE} of {image_files[kept].path}"
    return reasons


def exact_groups(infos: Sequence[ImageInfo]) -> list[list[int]]:
    """The rows that share their pixels with another, group by group."""
    rows = defaultdict(list)
    for row, info in enumerate(infos):
        if not info.reason:
            rows[info.pixels].append(row)
    return [group for group in rows.values() if len(group) > 1]


def check_unreadable_count(image_files: Sequence[ImageFile], infos: Sequence[ImageInfo], most: int) -> None:
    """Raise UserError if more than `most` images could not be used, naming the first five."""
    unusable = [(p.path, v.reason) for p, v in zip(image_files, infos, strict=True) if v.reason]
    if len(unusable) > most:
        shown = ", ".join(f"{path} ({reason})" for path, reason in unusable[:5])
        rest = ", …" if len(unusable) > 5 else ""
        raise UserError(
            f"split.max_unreadable: {len(unusable)} images of {len(image_files)} cannot be used, allowed: {most}; "
            f"{shown}{rest}; mend or remove them, or raise split.max_unreadable"
        )


# ---- near duplicates ----


def near_pairs(hashes: NDArray[np.uint64], threshold: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """All pairs of different hashes at most `threshold` bits apart, each once, in chunks of row numbers (left, right).

    Exact, by multi-index hashing (Norouzi, Punjani, Fleet: Fast Search in Hamming Space with Multi-Index Hashing,
    CVPR 2012). Cut the 64 bits into 4 bands of 16. Two hashes within 4 a + b bits (b < 4) agree within a bits on one
    of the first b + 1 bands, or within a - 1 bits on one of the others: else they would be at least
    (b + 1) (a + 1) + (3 - b) a = 4 a + b + 1 bits apart. So each band is sorted once, and for every mask of at most
    that many bits, all hashes look up at once which others have their band xor the mask.
    """
    masks = np.arange(2**16)
    bands = [(hashes >> np.uint64(16 * band)).astype(np.int64) & 0xFFFF for band in range(4)]
    radii = [threshold // 4 - (band > threshold % 4) for band in range(4)]  # -1: nothing to look up
    for band, (values, radius) in enumerate(zip(bands, radii, strict=True)):
        order = np.argsort(values, kind="stable")
        starts = np.searchsorted(values[order], np.arange(2**16 + 1))
        for mask in masks[np.bitwise_count(masks) <= radius]:
            wanted = values ^ mask
            for left, position in _expand(starts[wanted], starts[wanted + 1]):
                right = order[position]
                new = (left < right) & (np.bitwise_count(hashes[left] ^ hashes[right]) <= threshold)
                for earlier in range(band):  # what an earlier band has found is not new
                    new &= np.bitwise_count(bands[earlier][left] ^ bands[earlier][right]) > radii[earlier]
                yield left[new], right[new]


def _expand(first: NDArray[np.int64], last: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Every (row, position) with first[row] <= position < last[row], in chunks of about CANDIDATES."""
    counts = last - first
    ends = np.cumsum(counts)
    begins = ends - counts  # the candidates of all rows stand in one line: from where those of a row do
    cuts = np.searchsorted(ends, np.arange(CANDIDATES, ends[-1], CANDIDATES)) + 1
    for rows in np.split(np.arange(len(first)), cuts):
        row = np.repeat(rows, counts[rows])
        if len(row):
            yield row, first[row] + np.arange(len(row)) - (begins[row] - begins[rows[0]])


def near_duplicates(phashes: NDArray[np.uint64], parts: NDArray[np.int64], threshold: int) -> Near:
    """Join the images whose perceptual hashes are at most `threshold` bits apart, directly or over others.

    `parts` [N] is the number of the given part of each image (all 0 if none is given). Equal hashes are counted, not
    enumerated, so thousands of blank pages cost nothing.
    """
    hashes, index = np.unique(phashes, return_inverse=True)
    counts = np.zeros((len(hashes), len(SPLITS)), np.int64)  # images of each hash in each part
    np.add.at(counts, (index, parts), 1)
    totals = counts.sum(1)
    pairs = int((totals * (totals - 1) // 2).sum())
    pairs_within = int((counts * (counts - 1) // 2).sum())
    component = np.arange(len(hashes))
    for left, right in near_pairs(hashes, threshold):
        pairs += int((totals[left] * totals[right]).sum())
        pairs_within += int((counts[left] * counts[right]).sum())
        component = _joined(component, left, right)
    return Near(component[index], pairs, pairs - pairs_within)


def _joined(component: NDArray[np.int64], left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of each member's component [N] after each left and right were joined; in: the numbers before."""
    apart = component[left] != component[right]
    if not apart.any():
        return component
    edges = coo_array((apart[apart], (component[left[apart]], component[right[apart]])), (len(component),) * 2)
    joined: NDArray[np.int64] = connected_components(edges, directed=False)[1].astype(np.int64)
    return joined[component]


def make_groups(
    kept: Sequence[int], image_files: Sequence[ImageFile], infos: Sequence[ImageInfo], near: Near
) -> tuple[list[str], list[Group]]:
    """The group key of each kept image, and the groups, sorted by key."""
    members = defaultdict(list)
    for row, component in zip(kept, near.component.tolist(), strict=True):
        members[component].append(row)
    keys = {component: min(infos[row].pixels for row in rows) for component, rows in members.items()}
    groups = [Group(keys[c], Counter(image_files[row].label for row in rows)) for c, rows in members.items()]
    return [keys[c] for c in near.component.tolist()], sorted(groups, key=lambda group: group.key)


# ---- which part ----


def position(key: str, rule: Rule) -> Fraction:
    """Where a group lies on the circle [0, 1): by its content and the seed, turned so that this fold begins at 0."""
    number = int.from_bytes(hashlib.sha256(f"{rule.seed} {key}".encode()).digest()[:8])
    return (Fraction(number, 2**64) - Fraction(rule.fold, rule.folds)) % 1


def intervals(rule: Rule) -> dict[str, tuple[Fraction, Fraction]]:
    """The interval [from, to) of the circle that each part takes: test, then val, then train.

    The shares are the simple fractions that are meant (0.1 is 1/10), so the folds tile the circle exactly.
    """
    test = Fraction(rule.test).limit_denominator(10**6)
    val = test + Fraction(rule.val).limit_denominator(10**6)
    return {"train": (val, Fraction(1)), "val": (test, val), "test": (Fraction(0), test)}


def assign(groups: Sequence[Group], rule: Rule) -> tuple[dict[str, str], int]:
    """The part of each group (by its key), and how many images were moved so that no class lacks in a part.

    A class that chance leaves without an image in a part gets, from its part with the most images, the group whose
    position is nearest to the empty part. Only groups that lie wholly in the class are moved, so no other class
    changes. Raises UserError for a class with too few images or groups for that.
    """
    spans = intervals(rule)
    parts = {}
    for group in groups:
        where = position(group.key, rule)
        parts[group.key] = next(part for part, (start, end) in spans.items() if start <= where < end)
    by_class: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        for label in group.labels:
            by_class[label].append(group)
    moved = sum(_fill(label, by_class[label], parts, rule) for label in sorted(by_class))
    return parts, moved


def _fill(label: str, groups: Sequence[Group], parts: dict[str, str], rule: Rule) -> int:
    """Give every part an image of one class, changing `parts`; the number of images moved."""
    counts = Counter(dict.fromkeys(SPLITS, 0))
    for group in groups:
        counts[parts[group.key]] += group.labels[label]
    empty = [part for part in SPLITS if not counts[part]]
    own = [group for group in groups if len(group.labels) == 1]
    if empty and len(own) < len(SPLITS):
        raise UserError(
            f"class {label!r} has {counts.total()} images in {len(own)} groups of its own (near duplicates count as "
            f"one); needed: at least 3, for train, val and test; add images, or remove the class folder"
        )
    moved = 0
    for part in empty:
        span = intervals(rule)[part]
        spare = [group for group in own if counts[parts[group.key]] > group.labels[label]]  # empties no part
        ranked = [
            (-counts[parts[g.key]], _distance(position(g.key, rule), span), g.key, g.labels[label]) for g in spare
        ]
        _, _, key, image_files = min(ranked)
        counts[parts[key]] -= image_files
        counts[part] += image_files
        parts[key] = part
        moved += image_files
    return moved


def _distance(where: Fraction, interval: tuple[Fraction, Fraction]) -> Fraction:
    """How far a position outside an interval is from it, on the circle."""
    start, end = interval
    return min((start - where) % 1, (where - end) % 1)


def check_class_sizes(classes: Sequence[str], kept: Sequence[ImageFile]) -> None:
    """Raise UserError for a class with too few images: 3, or in a given split one in each part."""
    counts = Counter((image_file.label, image_file.given) for image_file in kept)
    given = any(image_file.given for image_file in kept)
    for label in classes:
        lacking = [part for part in SPLITS if not counts[label, part]]
        if given and lacking:
            raise UserError(
                f"class {label!r} has no image to use in {', '.join(lacking)}; needed: at least 1 in each of "
                f"{', '.join(SPLITS)}; add images, or remove the class folder"
            )
        if not given and counts[label, ""] < len(SPLITS):
            raise UserError(
                f"class {label!r} has {counts[label, '']} images to use; needed: at least 3, one each for "
                f"{', '.join(SPLITS)}; add images, or remove the class folder"
            )


# ---- the stage ----


def split(
    folder: Path, rule: Rule, *, near_bits: int, min_side: int, max_pixels: int, max_unreadable: int, workers: int
) -> tuple[list[Row], dict[str, object]]:
    """Judge and deal out all images of `folder`: the lines of split.csv and the content of data.json.

    Raises UserError for a layout, names, broken images or classes that the user has to mend.
    """
    image_files, classes = find_image_files(folder)

    def inspect_image(image_file: ImageFile) -> ImageInfo:
        return images.inspect_image(folder / image_file.path, min_side, max_pixels, perceptual_hash)

    infos = list(threads.ordered_map(inspect_image, image_files, workers, "split"))
    check_unreadable_count(image_files, infos, max_unreadable)
    reasons = exclusions(image_files, infos)
    kept = [row for row, reason in enumerate(reasons) if not reason]
    check_class_sizes(classes, [image_files[row] for row in kept])

    given = bool(image_files[0].given)
    near = near_duplicates(
        np.array([infos[row].phash for row in kept], np.uint64),
        np.array([SPLITS.index(image_files[row].given) if given else 0 for row in kept], np.int64),
        near_bits,
    )
    keys, groups = make_groups(kept, image_files, infos, near)
    parts, moved = ({}, 0) if given else assign(groups, rule)
    key_of = dict(zip(kept, keys, strict=True))
    rows = []
    for row, (image_file, reason, info) in enumerate(zip(image_files, reasons, infos, strict=True)):
        key = key_of.get(row, "")
        part = (image_file.given or parts[key]) if key else ""
        rows.append(Row(image_file, part, reason, info, key))
    return rows, summary(classes, rows, near, groups, moved)


def summary(
    classes: Sequence[str], rows: Sequence[Row], near: Near, groups: Sequence[Group], moved: int
) -> dict[str, object]:
    """The content of data.json: what there is, what is kept, where it went, and why the rest did not."""
    exact = exact_groups([row.info for row in rows])
    sizes = [sum(group.labels.values()) for group in groups]
    by_class = Counter((row.image_file.label, row.part or "excluded") for row in rows)
    reasons = Counter(DUPLICATE if row.reason.startswith(f"{DUPLICATE} of ") else row.reason for row in rows)
    return {
        "images": len(rows),
        "kept": sum(sizes),
        "classes": {label: {part: by_class[label, part] for part in (*SPLITS, "excluded")} for label in classes},
        "splits": {part: sum(row.part == part for row in rows) for part in SPLITS},
        "excluded": {reason: reasons[reason] for reason in (*images.REASONS, DUPLICATE, CONFLICT)},
        "exact_duplicate_pairs": sum(len(same) * (len(same) - 1) // 2 for same in exact),
        "conflicts": sum(len({rows[row].image_file.label for row in same}) > 1 for same in exact),
        "near_duplicate_pairs": near.pairs,
        "near_duplicate_groups": sum(size > 1 for size in sizes),
        "largest_group": max(sizes),
        "near_duplicates_across_splits": near.pairs_across,
        "moved_to_fill": moved,
    }


def line(row: Row) -> tuple[object, ...]:
    """A row as the cells of split.csv (HEADER)."""
    seen = row.info
    phash = f"{seen.phash:016x}" if seen.pixels else ""
    return (
        *(row.image_file.path, row.image_file.label, row.part, row.reason),
        *(seen.width, seen.height, seen.pixels, phash, row.group[:16]),
    )


def run(config: Params) -> None:
    linux.share_freed_memory()
    chosen, paths = config.split, config.paths
    rule = Rule(chosen.seed, chosen.fractions.val, chosen.fractions.test, chosen.folds, chosen.fold)
    rows, counts = split(
        Path(paths.images),
        rule,
        near_bits=chosen.phash_distance,
        min_side=chosen.min_side,
        max_pixels=chosen.max_pixels,
        max_unreadable=chosen.max_unreadable,
        workers=stage.workers(config),
    )
    files.write_csv(Path(paths.split), HEADER, (line(row) for row in rows))
    files.write_json(Path(paths.metrics) / "data.json", counts)


def main() -> int:
    return stage.main("split", run)


if __name__ == "__main__":
    sys.exit(main())
