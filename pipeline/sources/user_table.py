"""Reads a table that a user writes, such as labels.csv, and names its faults.

It is UTF-8 with commas. The first line names the columns, in any order. Semicolons between all cells are accepted, too:
Excel writes them where the comma is the decimal sign.
"""

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pipeline.base import errors
from pipeline.base.errors import Fault, UserError, damaged

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


def match_path(text: str, paths: Collection[str]) -> str:
    """The path of a cell without ./ at its begin; also with / instead of the \\ of Windows, unless it is in `paths`."""
    plain = text.removeprefix("./")
    return plain if plain in paths else plain.replace("\\", "/").removeprefix("./")
