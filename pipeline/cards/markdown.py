"""Tables and text of Markdown, for the Hugging Face Hub."""

import html
import re
import unicodedata
from collections.abc import Iterator, Sequence

MOST_ROWS = 100  # of a table of classes
MOST_NAMED = 20  # classes in a sentence


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


def in_words(names: Sequence[str]) -> str:
    """Names in a sentence; of many, the first ones."""
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(escaped, names[:MOST_NAMED])) + more


def escaped(text: str) -> str:
    """Text in which no letter is a mark of Markdown or HTML, in one line, and none hides or turns others."""
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", html.escape(visible(" ".join(text.split())), quote=False))


def visible(text: str) -> str:
    """Text with the numbers of its control and direction characters in their place, such as \\u202e."""
    return "".join(f"\\u{ord(letter):04x}" if _is_unseen(letter) else letter for letter in text)


def _is_unseen(letter: str) -> bool:
    """Whether a letter is a control or format character. The two joiners stay: Persian words and emoji have them."""
    return unicodedata.category(letter) in ("Cc", "Cf", "Cs") and letter not in "\u200c\u200d"
