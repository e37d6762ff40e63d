"""How lines look on a terminal: broken at blanks, in columns; a figure bold, the word note yellow, a refused name red.

Pipes, files and CI have no terminal, so they get each line as it is. The variable NO_COLOR (no-color.org) and TERM=dumb
turn the styles off.
"""

import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from io import TextIOWrapper

from pipeline.base.text import display_width, pad

BOLD, YELLOW, RED = "1", "1;33", "1;31"
STYLE = re.compile(r"\x1b\[[\d;]*m")
NOTE = re.compile(r"((?:[\w-]+: )?)note(?=:|  )")
# The later parts of a line begin below its text: after `train: `, and after the name of a row.
INDENT = re.compile(r"([\w-]+: )?(.*?\S {2,}(?=\S))?")


def styled(text: str, style: str, descriptor: int) -> str:
    """The text with a style, if this descriptor is a terminal that shows styles."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return text if is_plain or not os.isatty(descriptor) else f"\x1b[{style}m{text}\x1b[0m"


bold = partial(styled, style=BOLD, descriptor=1)  # a figure, on stdout
red = partial(styled, style=RED, descriptor=2)  # the name before a refusal, on stderr


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table as lines: every column is as wide as its widest cell."""
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(pad, row, widths)).rstrip() for row in rows]


def broken(line: str, width: int) -> str:
    """The line in parts of at most `width` columns, broken at blanks. A longer word stays whole."""
    if _width(line) <= width:
        return line
    indent = _width(INDENT.match(STYLE.sub("", line))[0])  # type: ignore[index]
    begin, parts = " " * (indent if 2 * indent <= width else 2), [""]
    for blanks, word in re.findall(r"( *)([^ ]+)", line):
        if parts[-1].strip() and _width(parts[-1] + blanks + word) > width:
            parts.append(begin + word)
        else:
            parts[-1] += blanks + word
    return "\n".join(parts)


def _width(text: str) -> int:
    """The number of columns of a text with styles."""
    return display_width(STYLE.sub("", text))


def shown(line: str, descriptor: int) -> str:
    """The line as a terminal shows it. A progress bar, with its carriage return, and JSON stay as they are."""
    if "\r" in line or line.startswith("{") or not os.isatty(descriptor):
        return line
    parts = broken(line, os.get_terminal_size(descriptor).columns or sys.maxsize)  # 0: it has not been told
    found = NOTE.match(parts)
    return f"{found[1]}{styled('note', YELLOW, descriptor)}{parts[found.end() :]}" if found else parts


class Lines(TextIOWrapper):
    """A stream that writes whole lines as `shown`. `flush` writes a line that has not ended, such as a question."""

    _begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        if lines:  # one write: lines of several processes do not mix
            super().write("".join(f"{shown(line, self.fileno())}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        begun, self._begun = self._begun, ""
        super().write(shown(begun, self.fileno()))
        super().flush()


def show_lines() -> None:
    """Write the lines of this process as `shown`, where its output is a terminal."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is TextIOWrapper and stream.isatty():
            setattr(sys, name, Lines(stream.buffer, stream.encoding, stream.errors, line_buffering=True))
