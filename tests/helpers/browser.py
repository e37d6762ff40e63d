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
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    yield page
    context.close()
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
