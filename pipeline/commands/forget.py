"""Forget photos: they and their near duplicates leave the data set, and the next run never sees them.

    perennial forget PHOTO…

A photo is a path of data/split.csv, or a part of a path that no other image has. Images with the same pixels, or in the
same group of data/split.csv, leave, too. They become lines of data/corrections.csv with the label `exclude`. The images
that stay keep their split where they can. The model that the next run makes has the bytes of one that was trained
without these files, and anybody can repeat it (perennial verify).
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.base import files
from pipeline.base.errors import Fault, UserError, raise_if_any
from pipeline.base.text import visible
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.data import corrections
from pipeline.dataset import split_table
from pipeline.dataset.split_table import ImageRow
from pipeline.sources import user_table

COLUMNS = ("path", "label", "reason")
REASON = "forgotten"


def together(rows: Sequence[ImageRow], paths: Sequence[str]) -> list[ImageRow]:
    """The rows of these paths, and those of images with the same pixels or in the same group as one of them."""
    chosen = {row.path for row in rows if row.path in paths}
    while True:
        same = {key for row in rows if row.path in chosen for key in (row.pixels, row.group) if key}
        more = {row.path for row in rows if row.pixels in same or row.group in same} - chosen
        if not more:
            return [row for row in rows if row.path in chosen]
        chosen |= more


def forget(config: Params, words: Sequence[str], table: Path = corrections.FILE) -> list[ImageRow]:
    """Exclude these images, and what belongs to them, in `table`. Returns the rows of the images that left.

    Raises UserError, and changes nothing, for a word that names no image or several, and if data/split.csv is missing.
    The next run refuses a class that has too few images left.
    """
    rows = split_table.all_rows(Path(config.paths.split))
    images = {row.path for row in rows}
    names = [(k, {"path": word.removeprefix(f"{config.paths.images}/")}) for k, word in enumerate(words, 1)]
    paths, _, faults = user_table.match_paths("PHOTO", names, images)
    raise_if_any(replace(fault, remedy=f"{config.paths.split} has the names") for fault in faults)
    before = corrections.read(table)
    known, _, _ = user_table.match_paths(str(table), before.lines, images)  # a line may have a part of a path
    lines = {path: cells for path, (_, cells) in zip(known, before.lines, strict=True)}
    excluded = {path for path, cells in lines.items() if cells["label"] == corrections.EXCLUDE}
    forgotten = [row for row in together(rows, paths) if row.path not in excluded]
    if not forgotten:
        reason = f"{table} excludes it already"
        raise UserError(Fault("PHOTO", ", ".join(words), "value", reason, remedy="perennial repro trains without it"))
    for row in forgotten:
        lines[row.path] = {**lines.get(row.path, {}), "path": row.path, "label": corrections.EXCLUDE, "reason": REASON}
    columns = (*COLUMNS, *before.unknown_columns)
    files.write_csv(table, columns, [[cells.get(name, "") for name in columns] for cells in lines.values()])
    return forgotten


def main(arguments: Namespace) -> int:
    config = params.load()
    forgotten = forget(config, arguments.photos)
    for row in forgotten:
        print(f"forget: {visible(row.path)} ({row.reason or row.split})")
    used = sum(not row.reason for row in forgotten)
    print(f"\n{len(forgotten):,} files are excluded in {corrections.FILE}; {used:,} of them were used.")
    steps = "The head is solved again." if not config.train.has_steps else "The whole training runs again."
    print(
        f"""{steps} Then:

perennial plan                          what will run, and how long it took
perennial repro                         the model without them
perennial compare HEAD workspace        what that changes
git commit -am 'Forget photos'
perennial verify                        in a clone, for others: the model is made without them

What still has them: the original files ({config.paths.inbox}/ or where they came from), earlier commits of Git (their
names), .dvc/tmp/features/, and DVC's cache and remote (pixels, features, earlier models). To remove the last three:
git commit, then rm -r .dvc/tmp/features, dvc gc --workspace, and for the remote dvc gc --workspace --cloud. Every
earlier commit then loses its files, too."""
    )
    return 0
