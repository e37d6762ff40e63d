"""Lines for a terminal: the columns of a table; a figure bold, the name before a refusal red.

Pipes, files and CI have no terminal, so they get each line as it is. The variable NO_COLOR (no-color.org) and TERM=dumb
turn the styles off.
"""

import os
from collections.abc import Sequence
from functools import partial

from pipeline.base.text import display_width, pad

BOLD, RED = "1", "1;31"


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
