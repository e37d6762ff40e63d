"""A real browser for tests of pages: Chromium of the system, without a window."""

import shutil
from collections.abc import Iterator
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
    """A page of a file. After the block: it wrote nothing to the console, and requested nothing but the file.

    It may have been loaded again."""
    # A page that still scrolls moves what a click is meant for.
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        java_script_enabled=script,
        reduced_motion="reduce",
    )
    context.set_default_timeout(600_000)  # milliseconds: a loaded machine takes longer than the usual thirty seconds
    page, messages, urls = context.new_page(), [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: urls.append(request.url))
    page.goto(path.as_uri())
    yield page
    context.close()
    assert messages == []
    assert {url for url in urls if not url.startswith("data:")} == {path.as_uri()}
