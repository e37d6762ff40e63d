"""Text for people: what acts on a terminal is escaped, and a long list of names is cut."""

import pytest

from pipeline.base.text import in_words, visible


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rose é 玫瑰 🌷", "rose é 玫瑰 🌷"),
        ("a\n\t\x1b[31m\x7f", r"a\n\t\x1b[31m\x7f"),
        ("a\u202eb\u2028\ufeff\U000e0001", r"a\u202eb\u2028\ufeff\U000e0001"),
        ("\udce9", r"\udce9"),  # a byte of a file's name that is no UTF-8
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("🧑\u200d🌾\u202e", "🧑\u200d🌾" + r"\u202e"),
        ("a\u00a0b\u202fc", "a\u00a0b\u202fc"),  # spaces, as macOS has them in names
        ("\U0001fffe", "\U0001fffe"),  # a letter of no version of Unicode
    ],
)
def test_only_what_acts_is_escaped(text: str, expected: str) -> None:
    """A letter stays as it is, also one that a later Unicode defines, and so does a joiner inside a word."""
    assert visible(text) == expected


def test_a_long_list_is_cut() -> None:
    """Twenty names are all there; of more, the number is."""
    names = [f"c{number}" for number in range(25)]
    assert in_words(names[:20]) == ", ".join(names[:20])
    assert in_words(names) == f"{', '.join(names[:20])} and 5 more"
    assert in_words([]) == ""
