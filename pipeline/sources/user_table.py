"""Reads a table that a user writes, such as labels.csv, and names its faults.

It is UTF-8 with commas. The first line names the columns, in any order. Semicolons between all cells are accepted, too:
Excel writes them where the comma is the decimal sign.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from unicodedata import normalize

from pipeline.base import errors
from pipeline.base.errors import Fault, UserError, damaged
from pipeline.base.text import visible
from pipeline.sources.layout import looks_like_image

CORRECT = "correct or remove this line"

Line = tuple[int, dict[str, str]]  # its number in the file, and its cells by column


@dataclass(frozen=True)
class Table:
    """The content of a table, not yet compared with the images."""

    lines: Sequence[Line] = ()  # that are not empty
    unknown_columns: Sequence[str] = ()  # are not read


def parse(table: str, content: bytes, needed: Sequence[str], optional: Sequence[str], other_table: str = "") -> Table:
    """The table of this content, with these columns. Raises UserError for a damaged one.

    `table` is its path; `other_table` a remedy, for a file that is another table.
    """
    try:
        text = content.decode("utf-8-sig")
        lines = list(_lines(text))
    except UnicodeDecodeError as error:
        raise damaged(table, f"not UTF-8 (byte {error.start})", "save it as UTF-8") from None
    except csv.Error as error:
        raise damaged(table, f"not a table with commas: {error}", "write it again") from None
    header = [name.strip().lower() for name in lines[0][1]] if lines else []
    missing_columns = [name for name in needed if name not in header]
    if missing_columns or len(set(header)) < len(header):
        reason = f"no column {' and '.join(missing_columns)}" if missing_columns else "two columns with one name"
        first = f"its first line is {', '.join(header)!r:.100}"
        names = f"{', '.join(needed)}, optionally {' and '.join(optional)}"
        raise UserError(Fault(table, first, "damaged", reason, f"{names}, with commas between", other_table))
    if any(errors.MERGE.match(cells[0].encode()) for _, cells in lines):
        raise damaged(table, "Git could not merge it", "keep one side")
    errors.raise_if_any(
        Fault(f"{table}:{number}", f"{len(cells)} cells", "damaged", allowed=f"{len(header)}, as in the first line")
        for number, cells in lines[1:]
        if len(cells) != len(header)
    )
    unknown_columns = [name for name in header if name not in (*needed, *optional)]
    rows = [(number, dict(zip(header, map(str.strip, cells), strict=True))) for number, cells in lines[1:]]
    return Table(rows, unknown_columns)


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line that is not empty, with its number. Raises csv.Error."""
    first = text.lstrip().partition("\n")[0]
    separator = ";" if ";" in first and "," not in first else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    for cells in reader:
        if any(map(str.strip, cells)):
            yield reader.line_num, cells


def by_path(
    table: str, content: Table, files: Collection[str], line_fault: Callable[[Mapping[str, str], str], str]
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Path of a file → the cells of its line; and notes on paths that are not written as their files, and on columns.

    `line_fault`: what is wrong with the cells of a path, or nothing. Raises UserError with every faulty line.
    """
    paths, notes, faults = match_paths(table, content.lines, files)
    rows: dict[str, dict[str, str]] = {}
    for (number, cells), path in zip(content.lines, paths, strict=True):
        value = f"{path!r:.100} is there twice" if path in rows else line_fault(cells, path)
        if path in files and value:
            faults.append(Fault(f"{table}:{number}", value, "value", remedy=CORRECT))
        rows[path] = cells
    errors.raise_if_any(sorted(faults, key=lambda fault: int(fault.key.rpartition(":")[2])))
    if content.unknown_columns:
        notes.append(f"{table}: columns that are not read: {', '.join(content.unknown_columns)}")
    return rows, notes


def match_paths(table: str, lines: Sequence[Line], files: Collection[str]) -> tuple[list[str], list[str], list[Fault]]:
    """For each line the file that it names, or the text of its cell if it names none; notes; and faults of paths.

    ./ may be at its begin, and \\ be written for /. A path that is no file names the only image that differs from it in
    capitals or the encoding of accents, or has an ending or folders above it that the path lacks.
    """
    plain = [cells["path"].removeprefix("./") for _, cells in lines]
    paths = [path if path in files else path.replace("\\", "/").removeprefix("./") for path in plain]
    images = defaultdict[str, list[str]](list)
    if any(path not in files for path in paths):  # only then: a data set may have a million files
        for file in filter(looks_like_image, files):
            for name in _names(_folded(file)):
                images[name].append(file)
    read, faulty = defaultdict[str, list[str]](list), defaultdict[str, list[tuple[int, str]]](list)
    for i, (number, _) in enumerate(lines):
        if (path := paths[i]) in files:
            continue
        found = images.get(_folded(path), [])
        if len(found) == 1:
            paths[i] = found[0]
            read[_difference(path, found[0])].append(f"{visible(path)!r:.100} for {visible(found[0])!r:.100}")
        else:
            faulty["may be several images" if found else "no such image"].append((number, f"{path!r:.100}"))
    notes = [
        f"{table}: paths with {what}, of which each can mean one image only: {len(pairs):,} (first: {pairs[0]})"
        for what, pairs in read.items()
    ]
    faults = []
    for what, ((number, path), *others) in faulty.items():  # they often have one cause
        reason = f"and so in {len(others):,} more lines" if others else ""
        example = min(filter(looks_like_image, files), default="")
        allowed = f"one image, as {example!r:.100}" if example else ""
        faults.append(Fault(f"{table}:{number}", f"{path}: {what}", "value", reason, allowed, CORRECT))
    return paths, notes, faults


def _folded(path: str) -> str:
    """The path with one encoding of accents, and without capitals."""
    return normalize("NFC", normalize("NFC", path).casefold())


def _names(path: str) -> Iterator[str]:
    """A path with all, some and none of its folders, each with and without the file's ending."""
    for whole in (path, str(PurePosixPath(path).with_suffix(""))):
        yield from (whole[start:] for start in [0, *(i + 1 for i, letter in enumerate(whole) if letter == "/")])


def _difference(path: str, file: str) -> str:
    """How a path differs from the file that it names."""
    if path.count("/") < file.count("/"):
        return "no folder, or a part of it"
    if _folded(path) != _folded(file):
        return "no ending"
    return "other capitals" if path.casefold() == file.casefold() else "another encoding of accents"
