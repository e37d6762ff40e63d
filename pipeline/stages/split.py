"""Stage `split`: decode and check every image once, and assign it to train, val or test.

    perennial split         reads the images; writes data/split.csv, data/kept.csv, and tables of counts in metrics/

The tables: images.csv (per class and split), excluded.csv (per reason), suspects.csv (images that a person should look
at), findings.csv (duplicates and everything else).

The steps: find the image files (data/folders.py), apply the corrections that a person wrote (data/corrections.py),
inspect each image, exclude broken files and exact duplicates (data/duplicates.py), and assign the others to splits
(data/splitting.py).
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.base import files, linux, threads
from pipeline.base.errors import Fault, UserError
from pipeline.base.text import visible
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.data import corrections, duplicates, findings, groups, split_report, splitting, suspects
from pipeline.data.folders import interpret
from pipeline.data.images import ImageInfo, inspect_image
from pipeline.data.splitting import Assignment, Cut
from pipeline.dataset import split_table
from pipeline.dataset.split_table import LEAVE_OUT, SPLITS, TRAIN_SHARE, ImageRow
from pipeline.sources import originals
from pipeline.sources.layout import ImageFile, Layout
from pipeline.sources.originals import Originals
from pipeline.sources.user_table import Table


class Result(NamedTuple):
    """What the split made of a folder."""

    rows: list[ImageRow]
    infos: list[ImageInfo]  # of the same files
    counts: dict[str, Any]  # see `summary`
    layout: Layout


def split(source: Originals, settings: params.Split, workers: int, table: Table = corrections.NONE) -> Result:
    """Inspect and assign all images of `source`, with the corrections of `table`.

    Raises UserError for a layout, names, corrections, broken images or classes that the user has to fix.
    """
    uncorrected = interpret(str(source.root), source.entries(), source.read)
    corrected = corrections.apply(table, uncorrected)
    layout = without_class(corrected.layout, settings.leave_out)
    image_files, cut = layout.image_files, splitting.find_cut(layout.image_files)
    names = groups.named_groups(layout, settings.group)
    inspected = inspect(source, image_files, settings, workers)
    infos = [
        replace(info, reason=corrected.reasons.get(file.path, info.reason))
        for file, info in zip(image_files, inspected, strict=True)
    ]
    check_unreadable_count(image_files, infos, settings.max_unreadable)
    duplicates.check_copied_classes(image_files, infos)
    reasons = duplicates.exclusions(image_files, infos, settings.duplicates)
    unused = {*corrected.layout.classes} - {*layout.classes}
    unused_images = [LEAVE_OUT if file.label in unused else "" for file in image_files]
    reasons = [reason or other for reason, other in zip(reasons, unused_images, strict=True)]
    usable = [row for row, reason in enumerate(reasons) if not reason]
    usable_files, usable_names = [image_files[row] for row in usable], [names[row] for row in usable]
    splitting.check_class_sizes(layout.classes, usable_files, cut)
    assigned = splitting.assign_images(usable_files, [infos[row] for row in usable], usable_names, cut, settings)
    split_and_group = dict(zip(usable, zip(assigned.splits, assigned.keys, strict=True), strict=True))
    used = groups_in_use(usable_files, assigned, settings)
    rows = [
        image_row(file, info, reason, *split_and_group.get(number, ("", "")), used)
        for number, (file, reason, info) in enumerate(zip(image_files, reasons, infos, strict=True))
    ]
    of_cut = [row for row, file in zip(rows, image_files, strict=True) if cut.includes(file)]
    counts = summary(layout.classes, rows, infos, assigned) | cut_counts(of_cut, cut)
    counts |= {"corrections": corrected.counts} if corrected.counts else {}
    if not any(names) and settings.group == "none":
        copies, notes = groups.copies_across_splits(usable_files, assigned.splits)
        counts |= {"copies_across_splits": copies} if copies else {}
        return Result(rows, infos, counts, replace(layout, notes=(*layout.notes, *notes)))
    of_groups, notes = groups.report(usable_files, usable_names, assigned.splits)
    return Result(rows, infos, counts | {"groups": of_groups}, replace(layout, notes=(*layout.notes, *notes)))


def without_class(layout: Layout, label: str) -> Layout:
    """The layout whose classes lack this one (split.leave_out); its files stay. `none` changes nothing.

    Raises UserError for a label that is no class, or if fewer than two classes remain.
    """
    if label == "none":
        return layout
    classes = [name for name in layout.classes if name != label]
    if len(classes) == len(layout.classes):
        raise UserError(Fault("split.leave_out", label, "value", allowed=", ".join(("none", *classes))))
    if len(classes) < 2:
        raise UserError(Fault("split.leave_out", label, "value", "a model needs two other classes", "none"))
    return replace(layout, classes=classes)


def groups_in_use(image_files: Sequence[ImageFile], assigned: Assignment, settings: params.Split) -> set[str]:
    """The groups of training images that split.train_share uses: by the position of a hash of their key.

    What a smaller share uses, a larger one uses, too. Each class keeps its first group.
    """
    places = {group: splitting.position(f"train_share {group}", settings) for group in assigned.keys}
    first: dict[str, str] = {}  # class → the group of training images with the lowest position
    for file, split, group in zip(image_files, assigned.splits, assigned.keys, strict=True):
        if split == "train":
            first[file.label] = min(first.get(file.label, group), group, key=places.__getitem__)
    share = Fraction(str(settings.train_share))
    return {group for group, place in places.items() if place < share} | {*first.values()}


def image_row(file: ImageFile, info: ImageInfo, reason: str, split: str, group: str, used: Collection[str]) -> ImageRow:
    """The row of a file; without a split if the file is a training image of a group that is not used."""
    if split == "train" and group not in used:
        reason, split, group = TRAIN_SHARE, "", ""
    phash = f"{info.phash:016x}" if info.pixels else ""
    return ImageRow(file.path, file.label, split, reason, info.width, info.height, info.pixels, phash, group[:16])


def cut_counts(rows: Sequence[ImageRow], cut: Cut) -> dict[str, Any]:
    """Counts, only if a split is given for some images: how many of the others were assigned to each split.

    `rows`: of the others.
    `cut_from_train` has the images in train that went to a missing split, `without_given_split` all those for which the
    table labels.csv gives no split.
    """
    if not cut.splits or (cut.given_split == "" and cut.splits == SPLITS):
        return {}
    number = Counter(row.split for row in rows if row.split)
    if cut.given_split == "":
        return {"without_given_split": {split: number[split] for split in SPLITS}}
    return {"cut_from_train": {split: number[split] for split in cut.splits if split != "train"}}


def inspect(
    source: Originals, image_files: Sequence[ImageFile], settings: params.Split, workers: int
) -> list[ImageInfo]:
    """What is known of each image file, after decoding it once."""

    def inspect_one(image_file: ImageFile) -> ImageInfo:
        path, sha256 = source.file(image_file.path)
        return inspect_image(path, settings.min_side, settings.max_pixels, sha256)

    return list(threads.ordered_map(inspect_one, image_files, workers, "split"))


def check_unreadable_count(image_files: Sequence[ImageFile], infos: Sequence[ImageInfo], most: int) -> None:
    """Raise UserError if more than `most` images cannot be used. It names the first five, and every remedy."""
    pairs = [(file.path, info) for file, info in zip(image_files, infos, strict=True)]
    unusable = findings.lost_images(pairs)
    if len(unusable) > most:
        first = ", ".join(f"{path} ({reason})" for path, reason in unusable[:5])
        rest = ", …" if len(unusable) > 5 else ""
        reason = f"{len(unusable)} images of {len(image_files)} cannot be used: {first}{rest}"
        remedy = "; ".join(["repair, convert or remove them, or raise split.max_unreadable", *findings.remedies(pairs)])
        raise UserError(Fault("split.max_unreadable", str(most), "damaged", reason, remedy=remedy))


def summary(
    classes: Sequence[str], rows: Sequence[ImageRow], infos: Sequence[ImageInfo], assigned: Assignment
) -> dict[str, Any]:
    """The number of images per class and split, of duplicates, and of everything else in `findings`."""
    exact = duplicates.exact_groups(infos)
    sizes = Counter(assigned.keys)
    by_class = Counter((row.label, row.split or "excluded") for row in rows)
    return {
        "images": len(rows),
        "kept": sum(bool(row.split) for row in rows),
        "classes": {label: {split: by_class[label, split] for split in (*SPLITS, "excluded")} for label in classes},
        "exact_duplicate_pairs": sum(len(same) * (len(same) - 1) // 2 for same in exact),
        "conflicts": sum(len({rows[row].label for row in same}) > 1 for same in exact),
        "near_duplicate_pairs": assigned.near.pairs,
        "near_duplicate_groups": int((np.bincount(assigned.near.component) > 1).sum()),
        "largest_group": max(sizes.values()),
        "near_duplicates_across_splits": assigned.near.pairs_across,
        "moved_to_fill": assigned.moved_images,
        **findings.counts(infos),
    }


def fold_line(settings: params.Split, cut: Cut) -> str:
    """Which fold this is, and the shares of the images that are assigned, in words."""
    fold = f"split.fold: {settings.fold}, of {settings.folds} folds (0 to {settings.folds - 1})"
    if "test" not in cut.splits:
        return f"{fold}: it changes no test image, because the data set gives them"
    others = {name: share for name, share in splitting.shares(settings).items() if name in cut.splits[1:]}
    shares = {"train": 1 - sum(others.values()), **others}
    return f"{fold}: {', '.join(f'{name} {float(100 * share):.3g} %' for name, share in shares.items())}"


def run(config: Params) -> None:
    linux.share_freed_memory()
    paths = config.paths
    source, workers = originals.locate(Path(paths.images), Path(paths.inbox)), config.run.decoding_threads
    rows, infos, counts, layout = split(source, config.split, workers, corrections.read())
    used = [row for row in rows if row.split]
    suspicious = suspects.find(used, [info.look for row, info in zip(rows, infos, strict=True) if row.split])
    counts["suspects"] = suspects.counts(suspicious)
    split_table.write(rows, Path(paths.split), Path(paths.kept))
    excluded = [(row.reason, row.path) for row in rows if row.reason]
    for name, content in split_report.tables(counts, excluded).items():
        files.write_csv(Path(paths.metrics) / name, *content)
    files.write_csv(Path(paths.metrics) / suspects.NAME, suspects.HEADER, suspicious)
    number = Counter(row.split for row in rows)
    print(
        f"split: {len(rows):,} files: {', '.join(f'{number[name]:,} {name}' for name in SPLITS)}; "
        f"{number['']:,} excluded, each with its reason in {paths.split}"
    )
    lines = [fold_line(config.split, splitting.find_cut(layout.image_files))] if config.split.folds > 1 else []
    lines += split_report.lines(layout, counts, excluded)
    if config.split.folds == 1 and (note := split_report.few_test_images(counts["classes"])):
        lines.append(note)
    lines += findings.lines([(row.path, info) for row, info in zip(rows, infos, strict=True)])
    if note := split_report.unseen_parts(config.prepare.fit, [(row.width, row.height) for row in used]):
        lines.append(note)
    remedy = (
        f"{paths.metrics}/{suspects.NAME} has all; look at them in {paths.reports}/index.html; "
        f"to correct a label or to leave an image out, write a line into {corrections.FILE}"
    )
    for line in [*lines, *suspects.lines(suspicious, remedy)]:
        print(f"split: {visible(line)}")
