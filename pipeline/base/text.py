"""Text for a terminal or a page."""

import unicodedata
from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

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


def is_no_path(word: str) -> bool:
    """Whether the word for an image is an address of the web, or `-`, the standard input."""
    return word == "-" or word.lower().startswith(("http://", "https://"))


def from_below(word: str, below: str) -> str:
    """The path of a word that was typed in the folder `below`; `..` stays in it: the folder before may be a link."""
    return word if is_no_path(word) else str(Path(below, word))


def did_you_mean(names: Sequence[str]) -> str:
    """The question whether a wrong name was meant as one of these; empty if there are none."""
    return f"did you mean {', '.join(names)}?" if names else ""


def in_words(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """Names for a sentence; of many, the first ones and the number of the others."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def coverage(text: str) -> float:
    """The coverage that a text is, for argparse. Raises ArgumentTypeError for one that evaluate.coverage refuses."""
    try:
        if 0.5 <= (number := float(text)) <= 0.999:
            return number
    except ValueError:
        pass
    raise ArgumentTypeError(f"{text!r:.40}; allowed: 0.5 to 0.999")


def share(text: str) -> float:
    """The share that a text is, for argparse, which refuses the text if this raises ValueError."""
    if not 0 < (number := float(text)) <= 1:
        raise ValueError
    return number


def part(text: str) -> tuple[int, int]:
    """The number of a part and that of all parts, for argparse, which refuses the text if this raises ValueError."""
    number, _, count = text.partition("/")
    if not 1 <= int(number) <= int(count):
        raise ValueError
    return int(number), int(count)


def positive(text: str) -> int:
    """The number that a text is, for argparse, which refuses the text if this raises ValueError."""
    if (number := int(text)) < 1:
        raise ValueError
    return number


def display_width(text: str) -> int:
    """The number of columns of a text on a terminal: two for a Chinese letter or an emoji, none for an accent."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.category(letter) in ("Mn", "Me", "Cf") for letter in text)


def pad(text: str, width: int) -> str:
    """The text with spaces behind it, `width` columns of a terminal in all."""
    return text + " " * (width - display_width(text))


def join_names(splits: tuple[str, ...]) -> str:
    """Names in a sentence: `train, val and test`."""
    return " and ".join(filter(None, [", ".join(splits[:-1]), splits[-1]]))
