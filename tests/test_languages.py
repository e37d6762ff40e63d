"""A document in Chinese (name.zh.md) says what its English original (name.md) says: line by line, nothing more or less.

Compared are the headings, lists and tables, the code blocks without their comments, and in each line the code, the
links and the figures. So whoever changes the original is told which line of the other to change.
"""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import PROJECT
from tests.documents.markdown import CODE, LINK, anchors
from tests.documents.phrases import PHRASES

CHINESE = sorted(path.relative_to(PROJECT) for path in PROJECT.glob("*.zh.md"))
TWINS = {Path(str(path).replace(".zh.md", ".md")): path for path in CHINESE}
FIGURE = re.compile(r"(?<![\w.])\d[\d,.]*", re.ASCII)
COMMENT = re.compile(r"(?:^|\s+)# .*$")
HAN, FULL_WIDTH = r"[\u4e00-\u9fff]", r"[,;:!?()]"


class Line(NamedTuple):
    """What a line of a document must share with that of the other language."""

    number: int
    form: str  # a heading's or list's mark, the cells of a table row, or the code of a line in a code block
    code: Counter[str]
    links: Counter[str]
    figures: Counter[str]


def lines(path: Path, headings: dict[str, int]) -> list[Line]:
    """The lines that are not empty; a link to a heading names its number."""
    result, inside = [], False
    for number, text in enumerate((PROJECT / path).read_text().splitlines(), 1):
        fence = text.lstrip().startswith("```")
        inside ^= fence
        if not text.strip():
            continue
        links = Counter(target(path, link, headings) for link in LINK.findall(text)) if not inside else Counter()
        plain = LINK.sub("]", text)
        code = Counter(CODE.findall(plain)) if not inside else Counter()
        figures = Counter(figure.rstrip(",.") for figure in FIGURE.findall(CODE.sub("", plain)))
        result.append(Line(number, COMMENT.sub(" #", text) if inside or fence else form(text), code, links, figures))
    return result


def form(text: str) -> str:
    """The marks of a line of prose: heading, list item, quote, comment, or the number of a table row's cells."""
    if text.startswith("|"):
        return f"table row of {text.count('|') - 1}"
    if text.startswith("<!--"):
        return text
    marks = re.match(r" *(?:#+ |[-*] |\d+\. |> |!\[|\[!)?", text)
    return marks[0] if marks else ""


def target(path: Path, link: str, headings: dict[str, int]) -> str:
    """Where a link goes, in words that are the same in both languages."""
    file, _, anchor = link.partition("#")
    if not file:
        return f"heading {headings[anchor]}"
    if "://" in file or file.startswith("../../"):
        return link
    name = PROJECT.joinpath(path.parent, file).resolve().relative_to(PROJECT)
    if name in TWINS or name in TWINS.values():
        return f"{re.sub(r'(.zh)?.md$', '', str(name))}#{anchor}"
    return f"{name}#{anchor}"


def test_there_is_a_pair() -> None:
    """The README alone is in two languages."""
    assert set(TWINS) == {Path("README.md")}


@pytest.mark.parametrize("english", TWINS, ids=str)
def test_both_languages_say_the_same(english: Path) -> None:
    """Line by line: marks, code, links and figures."""
    chinese = TWINS[english]
    ours, theirs = (lines(path, anchors(PROJECT / path)) for path in (english, chinese))
    for one, other in zip(ours, theirs, strict=False):
        assert one[1:] == other[1:], f"{english}:{one.number} and {chinese}:{other.number} differ"
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("chinese", CHINESE, ids=str)
def test_chinese_is_set_as_chinese(chinese: Path) -> None:
    """Full-width punctuation beside Chinese characters, and a space between them and Latin letters or figures."""
    for number, text in enumerate((PROJECT / chinese).read_text().splitlines(), 1):
        plain = LINK.sub("]", text)
        for wrong in (rf"{HAN}\s*{FULL_WIDTH}", rf"{FULL_WIDTH}\s*{HAN}", rf"{HAN}[a-zA-Z0-9`]|[a-zA-Z0-9`]{HAN}"):
            assert re.search(wrong, plain) is None, f"{chinese}:{number}: {text}"


def test_a_phrase_has_the_same_values_in_both_languages() -> None:
    """The places for values, with the form of each figure."""
    for english, chinese in PHRASES.items():
        assert Counter(re.findall(r"{.*?}", english)) == Counter(re.findall(r"{.*?}", chinese))
