"""Tables and text of Markdown, for the Hugging Face Hub."""

import html
import re
from collections.abc import Iterator, Sequence

from pipeline.base.text import visible

MOST_ROWS = 100  # of a table of classes


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table of Markdown."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def unshown(number: int) -> Iterator[str]:
    """A sentence about the classes that a table leaves out."""
    if number > MOST_ROWS:
        yield ""
        yield f"{number - MOST_ROWS:,} more classes are not shown."


def escaped(text: str) -> str:
    """Text in which no letter is a mark of Markdown or HTML, in one line, and none hides or turns others."""
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", html.escape(visible(" ".join(text.split())), quote=False))
