"""Templates become text: the pages (HTML) and the model card (Markdown).

Every text of a page goes through `escape`, also without a filter, so no name of a class or a file becomes markup. In
the card the filter `markdown` does this. A name that a template does not know is an error, never an empty text.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from pipeline.base.text import in_words, visible
from pipeline.evaluation import metrics

TEMPLATES = Path(__file__).with_name("templates")
Html = markupsafe.Markup  # text that is HTML already


def page(template: str, **values: Any) -> str:
    """The HTML of this template with these values."""
    return _page_environment().get_template(template).render(values)


def card(template: str, **values: Any) -> str:
    """The Markdown of this template with these values."""
    return _card_environment().get_template(template).render(values)


@cache
def _page_environment() -> jinja2.Environment:
    environment = _environment(autoescape=True, finalize=escape)
    environment.filters |= {
        "code": _code,
        "digest": _digest,
        "exact": markupsafe.escape,  # for scripts, which give a name back
        "in_words": lambda names: Html(in_words([_name(name) for name in names])),
        "name": _name,
        "source": _source,
    }
    return environment


@cache
def _card_environment() -> jinja2.Environment:
    environment = _environment(autoescape=False)
    environment.filters |= {
        "code": markdown_code,
        "in_words": lambda names: in_words([markdown(name) for name in names]),
        "markdown": markdown,
    }
    return environment


def _environment(**options: Any) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        optimized=False,  # compiles faster, and a stage renders a template once
        **options,
    )
    environment.filters |= {"number": number, "percent": percent, "several": several}
    environment.globals["FIGURES"] = metrics.FIGURES
    return environment


# ---- text of users ----


def escape(value: object) -> Html:
    """The value as text of a page or an attribute; HTML stays. An invisible character becomes its escape sequence."""
    return value if isinstance(value, Html) else markupsafe.escape(visible(str(value)))


def markdown(value: str) -> str:
    """Text in which no letter is a mark of Markdown or HTML, in one line, and none hides or turns others."""
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", html.escape(visible(" ".join(value.split())), quote=False))


def markdown_code(value: str) -> str:
    """Text in the letters of a terminal, also in a table: there a line divides cells, and in a code span, too."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", value)), default=0))
    blank = " " * (len(ticks) > 1)
    return ticks + blank + visible(value).replace("|", r"\|") + blank + ticks


def _name(value: str) -> Html:
    """A name that a user chose. Its direction (right to left, say) does not reach the text beside it."""
    return Html(f"<bdi>{escape(value)}</bdi>")


def _code(value: object) -> Html:
    """The value in the letters of a terminal."""
    return Html(f"<code>{escape(value)}</code>")


# ---- numbers ----


def number(value: float, form: str = ",") -> str:
    """The number in this form of Python, without a form as `12,345`. There is no -0."""
    return format(value + 0, form)


def percent(share: float) -> str:
    """A share as `94.3 %`, with a space that no line breaks at."""
    return f"{100 * share:.1f}\u00a0%"


def several(count: int, singular: str, plural: str) -> str:
    """A number with its noun: `1 image`, `1,200 images`."""
    return f"{count:,} {singular if count == 1 else plural}"


# ---- styles and scripts ----


def _source(names: Iterable[str]) -> Html:
    """Styles or scripts of the folder, one after the other."""
    return Html("".join((TEMPLATES / name).read_text(encoding="utf-8") for name in names))


def _digest(script: str) -> str:
    """The SHA-256 of a script in the form of a Content Security Policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
