"""Pieces of HTML. Every text of a user goes through `text`, so no name of a class or a file becomes markup."""

import html
import re
from collections.abc import Iterable, Sequence

from pipeline.base.text import visible


def text(value: object) -> str:
    """The value as text of a page or of an attribute. A character that cannot be seen becomes its escape."""
    return html.escape(visible(str(value)))


def name(value: str) -> str:
    """A name that a user chose. Its direction (right to left, say) does not reach the text beside it."""
    return f"<bdi>{text(value)}</bdi>"


def path(value: str) -> str:
    """A path or the name of a file, which is read from left to right whatever letters it has."""
    return f'<bdi dir="ltr">{text(value)}</bdi>'


def isolated(value: str) -> str:
    """The same for an attribute, where no element can be: between characters that have this effect."""
    return f"\u2068{text(value)}\u2069"


def code(value: object) -> str:
    """The value in the letters of a terminal."""
    return f"<code>{text(value)}</code>"


def preformatted(*lines: str) -> str:
    """Lines of a terminal or of a file, in its letters."""
    body = "\n".join(map(text, lines))
    return f'<pre tabindex="0">{body}</pre>'


def section(anchor: str, title: str, *parts: str) -> str:
    """A part of the page with its heading; `anchor` is its address in the page."""
    body = "\n".join(part for part in parts if part)
    heading = f'<h2 id="{anchor}-title">{title}</h2>'
    return f'<section id="{anchor}" aria-labelledby="{anchor}-title">\n{heading}\n{body}\n</section>'


def paragraph(content: str, kind: str = "") -> str:
    return f'<p class="{kind}">{content}</p>' if kind else f"<p>{content}</p>"


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of HTML cells that scrolls by itself if it is wide. The first cell of a row is its heading."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "\n".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'
        for first, *others in rows
    )
    return wide(
        caption,
        f'<table class="{kind}">\n<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table>",
    )


def wide(label: str, content: str) -> str:
    """Content that may be wider than a phone: it scrolls in a frame of its own, with the keyboard too."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{_plain(label)}">\n{content}\n</div>'


def beside(*parts: str) -> str:
    """Parts side by side where there is room for it."""
    body = "\n".join(parts)
    return f'<div class="beside">\n{body}\n</div>'


def folded(summary: str, content: str) -> str:
    """Content that is shown after a click; a printed page has it."""
    return f"<details>\n<summary>{summary}</summary>\n{content}\n</details>"


def percent(share: float) -> str:
    """A share as `94.3 %`, with a space that no line breaks at."""
    return f"{100 * share:.1f}\u00a0%"


def are(count: int, one: str, several: str) -> str:
    """So many things: `1 image`, `1,200 images`."""
    return f"{count:,} {one if count == 1 else several}"


def _plain(content: str) -> str:
    """HTML without its tags, as the text of an attribute."""
    return re.sub(r"<[^>]*>", "", content)
