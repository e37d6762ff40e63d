"""Text for a terminal or a page."""

import unicodedata
from collections.abc import Sequence

# Categories of Unicode that change a terminal or a page instead of showing a letter: control and format characters
# (escape sequences, U+202E), bytes that are no UTF-8, and breaks of a line or paragraph. A letter that this Python does
# not know is in none of them, so every version of Python writes the same bytes.
CONTROL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
JOINERS = "\u200c\u200d"  # format characters inside Persian words and emoji
MOST_NAMED = 20  # in one sentence


def visible(text: str) -> str:
    """The text with Python's escapes, such as \\n and \\u202e, for control characters. The joiners stay."""
    if text.isprintable():
        return text
    return "".join(
        ascii(letter)[1:-1] if unicodedata.category(letter) in CONTROL and letter not in JOINERS else letter
        for letter in text
    )


def did_you_mean(names: Sequence[str]) -> str:
    """The question whether a wrong name was meant as one of these; empty if there are none."""
    return f"did you mean {', '.join(names)}?" if names else ""


def in_words(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """Names for a sentence; of many, the first ones and the number of the others."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
