"""What every page promises, looked at with a real browser: the report, all folds, a sweep, two runs, predictions."""

import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from playwright.sync_api import Browser

from pipeline.answers import gallery_page
from pipeline.answers.answer import Answer
from pipeline.answers.classify import Request
from pipeline.base import files
from pipeline.config.params import Params
from pipeline.reporting import rendering
from pipeline.studies import folds_page
from tests import test_folds_page, test_pair, test_sweep_page
from tests.conftest import PHOTOS
from tests.helpers import reports
from tests.helpers.browser import CONTRASTS, Scheme, needs_chromium, opened
from tests.helpers.pages import parsed

# page → it has more texts than so many
PAGES = {"report": 200, "folds": 200, "sweep": 40, "compare": 60, "predict": 30}
ANSWERS = [
    Answer(f"{test_pair.HOSTILE}/{k}", str(photo), best, "class" if k % 3 else "none", {best: k / 10}, label)
    for k, photo in enumerate(sorted(PHOTOS.rglob("*.jpg"))[:8])
    for best, label in [((test_pair.HOSTILE, ""), ("daisy", "daisy"))[k % 2]]
]
every_page = pytest.mark.parametrize("name", PAGES)


@pytest.fixture(scope="module")
def pages(reported: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The file of each page."""
    folder = tmp_path_factory.mktemp("pages")
    texts = {
        "report": (reported / "reports/index.html").read_text(),
        "folds": folds_page.page(test_folds_page.content(reported)),
        "sweep": test_sweep_page.PAGE,
        "compare": test_pair.page(),
        "predict": gallery_page.page(ANSWERS, Params(), Request(()), {ANSWERS[0].file}),
    }
    for name, text in texts.items():
        files.write_text(folder / f"{name}.html", text)
    return {name: folder / f"{name}.html" for name in texts}


@every_page
def test_what_users_named_is_text_and_nothing_else(pages: dict[str, Path], reported: Path, name: str) -> None:
    """No element runs a script or asks for a file, but the page's own; no letter hides others; no place, no time."""
    text = pages[name].read_text()
    root = parsed(text)
    policy = root.one("meta", **{"http-equiv": "Content-Security-Policy"}).attributes["content"]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-")
    assert not re.search("[\u202a-\u202e\u2066\u2067]", text)
    for element in root.all():
        assert element.tag not in ("i", "iframe", "object")
        assert not any(key.startswith("on") for key in element.attributes), element.attributes
        assert element.attributes.get("src", "data:image/jpeg;base64,").startswith("data:image/jpeg;base64,")
    hostile = {"predict": test_pair.HOSTILE, "sweep": test_sweep_page.HOSTILE, "compare": test_pair.HOSTILE}.get(
        name, reports.HOSTILE
    )
    assert root.text.count(hostile) > 3
    assert str(reported) not in text
    assert not re.search(r"20\d\d-\d\d-\d\d|\d\d:\d\d:\d\d", text)
    assert len(text) < 200_000


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@every_page
def test_it_can_be_read(browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: Scheme) -> None:
    """Nothing is wider than the window, every text has a contrast of 4.5, and every link has its target."""
    parts = [part.attributes["id"] for part in parsed(pages[name].read_text()).one("main").all("section")]
    with opened(browser, pages[name], width=width, scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > PAGES[name]
        assert [(round(value, 2), what) for value, what in contrasts if value < 4.5] == []
        assert [part for part in parts if not page.locator(f"#{part}").is_visible()] == []
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
        links = page.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map((one) => one.hash.slice(1))")
        assert len(ids) == len(set(ids))
        assert set(parts) <= set(links) <= set(ids)
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
        assert dark == (scheme == "dark")


@needs_chromium
@every_page
def test_without_javascript_and_printed_it_is_whole(
    browser: Browser, pages: dict[str, Path], name: str, tmp_path: Path
) -> None:
    """Every image is shown or folded. A print is on white paper, of a dark page too, and has what is folded."""
    with opened(browser, pages[name], scheme="dark", script=False) as page:
        assert page.locator(".shot:visible").count() == page.locator(".shot:not(details .shot)").count()
        assert page.locator("select").count() == 0
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.locator("nav").is_hidden()
        heights = page.locator("details").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().height)")
        assert all(height > 100 for height in heights)  # only their first line: 24
        page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_a_value_that_a_template_lacks_is_an_error() -> None:
    """Never an empty text."""
    with pytest.raises(UndefinedError):
        rendering.page("sweep.html.jinja")
