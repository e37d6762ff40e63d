"""The page with two runs, which `make compare` writes for two of them, looked at with a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from pipeline.claims import pair
from pipeline.claims.pair import Run
from tests.helpers import browser as browsers
from tests.helpers.browser import Scheme, on_every_screen, readable

HOSTILE = "<b onclick=alert(1)>"
FIGURES = {"accuracy": 0.5, "macro_f1": 0.4, "nll": 1.25, "ece": 0.1, "val_accuracy": 0.75, "exported_epoch": 2}
CHANGED = [("train.lr", "0.1", "0.05"), ("train.model", "resnet18", "<i>resnet34</i>")]


def run_of(name: str, right: list[bool], epochs: int) -> Run:
    """A run that has these of its test images right, with so many epochs."""
    classes = ("daisy", HOSTILE)
    rows = [
        {"path": f"{k}.jpg", "label": classes[k % 2], "prediction": classes[k % 2 if hit else 1 - k % 2]}
        for k, hit in enumerate(right)
    ]
    columns = ("train_loss", "val_loss", "train_accuracy", "val_accuracy")
    history = [dict.fromkeys(columns, str(1 / (epoch + 1))) for epoch in range(epochs)]
    return Run(name, FIGURES, rows, history)


# 1 both right, 2 only the first, 3 only the second, 1 both wrong
FIRST = run_of("HEAD", [True, True, True, False, False, False, False], 3)
SECOND = run_of(HOSTILE, [True, False, False, True, True, True, False], 5)
PAGE = pair.compared(FIRST, SECOND, "the second is better by 14.3 points, p = 1: not shown", CHANGED)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.started() as running:
        yield running


def test_it_says_where_two_runs_disagree() -> None:
    """The verdict, every changed setting, the shares of each class, and each image that only one has right."""
    assert "p = 1: not shown" in PAGE
    assert "<td><code>0.1</code></td><td><code>0.05</code></td>" in PAGE
    assert "Both have 1 image right, and both have 1 wrong." in PAGE
    assert "Images that only <bdi>HEAD</bdi> has right: 2" in PAGE
    first, second = PAGE.split("Images that only <bdi>HEAD</bdi> has right")[-1].split("Images that only ")[::2]
    assert [f"{k}.jpg" in first for k in range(7)] == [k in (1, 2) for k in range(7)]
    assert [f"{k}.jpg" in second for k in range(7)] == [k in (3, 4, 5) for k in range(7)]
    assert "<td>4</td><td>50.0\u00a0%</td><td>50.0\u00a0%</td></tr>" in PAGE  # of daisy: images 0 and 2, and 0 and 4


def test_names_of_users_are_text() -> None:
    assert "<b onclick" not in PAGE
    assert "<i>resnet34" not in PAGE
    assert PAGE.count("&lt;b onclick=alert(1)&gt;") > 5


def test_runs_without_a_difference_say_so() -> None:
    """No setting differs, and no image is right in one only."""
    same = pair.compared(FIRST, FIRST, "equally accurate", [])
    assert "No setting differs." in same
    assert same.count(" has right: 0.</p>") == 2


def test_a_long_list_is_cut_and_says_so() -> None:
    """A page of a large set stays small."""
    many = pair.compared(run_of("a", [True] * 80, 2), run_of("b", [False] * 80, 2), "", [])
    assert "has right: the first 50 of 80" in many
    assert "49.jpg" in many
    assert "50.jpg" not in many


@on_every_screen
def test_a_browser_shows_it(browser: Browser, tmp_path: Path, width: int, scheme: Scheme) -> None:
    """Nothing in the console, no request, no scrolling sideways, and every text can be read."""
    path = tmp_path / "compare.html"
    path.write_text(PAGE)
    with readable(browser, path, width=width, scheme=scheme, texts=60) as page:
        assert page.locator("svg").count() == 4
