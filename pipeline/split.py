"""Stage `split`: decode and check every image once, and assign it to train, val or test.

    python -m pipeline.split         reads paths.images; writes paths.split and data.json in paths.metrics

The steps: find the image files (data/folders.py), inspect each one, exclude broken files and exact duplicates, group
near duplicates (data/duplicates.py), and assign each group to a split (data/assignment.py). If the folders already give
a split, it is kept.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline import stage
from pipeline.base import files, linux, threads
from pipeline.base.errors import UserError
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.data import assignment, duplicates, folders, images
from pipeline.data.assignment import Group
from pipeline.data.duplicates import CONFLICT, DUPLICATE, NearDuplicates
from pipeline.data.folders import ImageFile
from pipeline.data.images import ImageInfo
from pipeline.data.split_table import HEADER, SPLITS


@dataclass(frozen=True)
class Row:
    """A row of split.csv."""

    image_file: ImageFile
    split: str  # empty if excluded
    reason: str  # empty if kept
    info: ImageInfo
    group: str  # the group's key; empty if excluded


def split(folder: Path, settings: params.Split, workers: int) -> tuple[list[Row], dict[str, object]]:
    """Inspect and assign all images of `folder`: the rows of split.csv and the content of data.json.

    Raises UserError for a layout, names, broken images or classes that the user has to fix.
    """
    image_files, classes = folders.find_image_files(folder)
    infos = inspect(folder, image_files, settings, workers)
    check_unreadable_count(image_files, infos, settings.max_unreadable)
    reasons = duplicates.exclusions(image_files, infos)
    usable = [row for row, reason in enumerate(reasons) if not reason]
    assignment.check_class_sizes(classes, [image_files[row] for row in usable])

    is_given = bool(image_files[0].given_split)
    near = duplicates.near_duplicates(
        np.array([infos[row].phash for row in usable], np.uint64),
        np.array([SPLITS.index(image_files[row].given_split) if is_given else 0 for row in usable], np.int64),
        settings.phash_distance,
    )
    keys, groups = assignment.make_groups(
        near.component.tolist(), [image_files[row].label for row in usable], [infos[row].pixels for row in usable]
    )
    splits, moved = ({}, 0) if is_given else assignment.assign(groups, settings)
    key_of = dict(zip(usable, keys, strict=True))
    rows = []
    for number, (image_file, reason, info) in enumerate(zip(image_files, reasons, infos, strict=True)):
        key = key_of.get(number, "")
        chosen = (image_file.given_split or splits[key]) if key else ""
        rows.append(Row(image_file, chosen, reason, info, key))
    return rows, summary(classes, rows, near, groups, moved)


def inspect(folder: Path, image_files: Sequence[ImageFile], settings: params.Split, workers: int) -> list[ImageInfo]:
    """What is known of each image file, after decoding it once."""

    def inspect_image(image_file: ImageFile) -> ImageInfo:
        path = folder / image_file.path
        return images.inspect_image(path, settings.min_side, settings.max_pixels, duplicates.perceptual_hash)

    return list(threads.ordered_map(inspect_image, image_files, workers, "split"))


def check_unreadable_count(image_files: Sequence[ImageFile], infos: Sequence[ImageInfo], most: int) -> None:
    """Raise UserError if more than `most` images cannot be used. It names the first five."""
    unusable = [(file.path, info.reason) for file, info in zip(image_files, infos, strict=True) if info.reason]
    if len(unusable) > most:
        first = ", ".join(f"{path} ({reason})" for path, reason in unusable[:5])
        rest = ", …" if len(unusable) > 5 else ""
        raise UserError(
            f"split.max_unreadable: {len(unusable)} images of {len(image_files)} cannot be used, allowed: {most}; "
            f"{first}{rest}; repair or remove them, or raise split.max_unreadable"
        )


def summary(
    classes: Sequence[str], rows: Sequence[Row], near: NearDuplicates, groups: Sequence[Group], moved: int
) -> dict[str, object]:
    """The content of data.json: the number of images per class, split and reason, and of duplicates."""
    exact = duplicates.exact_groups([row.info for row in rows])
    sizes = [sum(group.labels.values()) for group in groups]
    by_class = Counter((row.image_file.label, row.split or "excluded") for row in rows)
    reasons = Counter(DUPLICATE if row.reason.startswith(f"{DUPLICATE} of ") else row.reason for row in rows)
    return {
        "images": len(rows),
        "kept": sum(sizes),
        "classes": {label: {split: by_class[label, split] for split in (*SPLITS, "excluded")} for label in classes},
        "splits": {split: sum(row.split == split for row in rows) for split in SPLITS},
        "excluded": {reason: reasons[reason] for reason in (*images.REASONS, DUPLICATE, CONFLICT)},
        "exact_duplicate_pairs": sum(len(same) * (len(same) - 1) // 2 for same in exact),
        "conflicts": sum(len({rows[row].image_file.label for row in same}) > 1 for same in exact),
        "near_duplicate_pairs": near.pairs,
        "near_duplicate_groups": sum(size > 1 for size in sizes),
        "largest_group": max(sizes),
        "near_duplicates_across_splits": near.pairs_across,
        "moved_to_fill": moved,
    }


def cells(row: Row) -> tuple[object, ...]:
    """A row as the cells of split.csv, in the order of HEADER."""
    info = row.info
    phash = f"{info.phash:016x}" if info.pixels else ""
    return (
        *(row.image_file.path, row.image_file.label, row.split, row.reason),
        *(info.width, info.height, info.pixels, phash, row.group[:16]),
    )


def run(config: Params) -> None:
    linux.share_freed_memory()
    paths = config.paths
    rows, counts = split(Path(paths.images), config.split, stage.workers(config))
    files.write_csv(Path(paths.split), HEADER, map(cells, rows))
    files.write_json(Path(paths.metrics) / "data.json", counts)
    number = Counter(row.split for row in rows)
    print(
        f"split: {len(rows):,} files: {', '.join(f'{number[name]:,} {name}' for name in SPLITS)}; "
        f"{number['']:,} excluded, each with its reason in {paths.split}"
    )


def main() -> int:
    return stage.main("split", run)


if __name__ == "__main__":
    sys.exit(main())
