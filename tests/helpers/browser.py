"""A real browser for tests of pages: Chromium of the system, without a window."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

Scheme = Literal["light", "dark"]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")

# For each element with text of its own: the contrast of its colour with the colour behind it (WCAG 2).
CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = rgb(colour).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    while (element && rgb(getComputedStyle(element).backgroundColor)[3] === 0) element = element.parentElement;
    return getComputedStyle(element).backgroundColor;
  };
  const contrasts = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const ink = light(element.closest("svg") ? style.fill : style.color), paper = light(behind(element));
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    contrasts.push([contrast, `${element.tagName} ${element.className}: ${element.textContent.slice(0, 30)}`]);
  }
  return contrasts;
}"""


@contextmanager
def started() -> Iterator[Browser]:
    """The browser. It ends after the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # for root, as in CI
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser, path: Path, *, width: int = 1280, scheme: Scheme = "light", script: bool = True
) -> Iterator[Page]:
    """A page of a file. After the block: it wrote nothing to the console, and requested nothing but the file."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=script
    )
    page, messages, urls = context.new_page(), [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: urls.append(request.url))
    page.goto(path.as_uri())
    yield page
    context.close()
    assert messages == []
    assert [url for url in urls if not url.startswith("data:")] == [path.as_uri()]


def on_every_screen(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test on a desktop and on a phone, light and dark: its parameters `width` and `scheme`."""
    of_width = pytest.mark.parametrize("width", [1280, 390])
    of_scheme = pytest.mark.parametrize("scheme", ["light", "dark"])
    function: Callable[..., None] = needs_chromium(of_width(of_scheme(test)))
    return function


@contextmanager
def readable(browser: Browser, path: Path, *, width: int, scheme: Scheme, texts: int) -> Iterator[Page]:
    """An opened page: nothing is wider than the window, and all texts, more than so many, have a contrast of 4.5."""
    with opened(browser, path, width=width, scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > texts
        assert [(round(value, 2), what) for value, what in contrasts if value < 4.5] == []
        yield page


def assert_links_have_targets(page: Page, parts: Sequence[str]) -> None:
    """No address inside the page is there twice, none is missing, and each part has a link."""
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    links = page.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map((one) => one.hash.slice(1))")
    assert len(ids) == len(set(ids))
    assert set(parts) <= set(links) <= set(ids)
