"""The parts of a document in Markdown: links, headings and their anchors, code."""

import re
from collections.abc import Iterable
from pathlib import Path

LINK, CODE = re.compile(r"\]\(([^)]+)\)"), re.compile(r"`[^`]+`")
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The anchor of each heading, as the Git hosts make it from the heading."""
    titles = re.findall(r"^#+ (.+)$", BLOCK.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands(text: str) -> list[str]:
    """Every command line in a text: the lines of its code blocks, and what is in code style."""
    lines = [line.partition("  #")[0] for _, block in BLOCK.findall(text) for line in block.splitlines()]
    return [*lines, *(code.strip("`") for code in CODE.findall(BLOCK.sub("", text)))]


def table(titles: str, rows: Iterable[Iterable[object]]) -> str:
    """A table: the titles as one line, and the cells of each row."""
    head = [f"| {titles} |", f"|{'---|' * (titles.count('|') + 1)}"]
    return "\n".join([*head, *(f"| {' | '.join(map(str, row))} |" for row in rows)])
