"""The page with two runs, which `make compare` writes for two of them, looked at with a real browser."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from pipeline.reruns import pair
from pipeline.reruns.pair import Run
from tests.helpers import browser as browsers
from tests.helpers.browser import Scheme, on_every_screen, readable

HOSTILE = "<b onclick=alert(1)>"
FIGURES = {"macro_f1": 0.4, "nll": 1.25, "ece": 0.1, "val_accuracy": 0.75}
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
    figures = FIGURES | {"accuracy": sum(right) / len(right), "exported_epoch": epochs - 1, "seconds": 10.0 * epochs}
    return Run(name, figures, {"val": 8, "test": len(right)}, rows, history)


# 1 both right, 2 only the first, 3 only the second, 1 both wrong
FIRST = run_of("HEAD", [True, True, True, False, False, False, False], 3)
SECOND = run_of(HOSTILE, [True, False, False, True, True, True, False], 5)
PAGE = pair.compared(FIRST, SECOND, "the second has 14.3 points more; chance can do as much (p = 1)", CHANGED)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.started() as running:
        yield running


def test_it_says_where_two_runs_disagree() -> None:
    """The verdict, every changed setting, the shares of each class, and each image that only one has right."""
    assert "chance can do as much (p = 1)" in PAGE
    assert "<td><code>0.1</code></td><td><code>0.05</code></td>" in PAGE
    assert "Both have 1 image right, and both have 1 wrong." in PAGE
    assert "Images that only <bdi>HEAD</bdi> has right: 2" in PAGE
    first, second = PAGE.split("Images that only <bdi>HEAD</bdi> has right")[-1].split("Images that only ")[::2]
    assert [f"{k}.jpg" in first for k in range(7)] == [k in (1, 2) for k in range(7)]
    assert [f"{k}.jpg" in second for k in range(7)] == [k in (3, 4, 5) for k in range(7)]
    daisy = next(line for line in PAGE.splitlines() if "daisy" in line and "<td>4</td>" in line)
    assert re.findall(r"<td>([^<]*)", daisy) == ["4", "50.0\u00a0%", "50.0\u00a0%", "+0.0"]  # images 0 and 2; 0 and 4


def test_every_figure_has_the_difference_and_shares_have_their_interval() -> None:
    """The second one less the first; of the time too. What is not known of a run is a dash."""
    rows = dict(re.findall(r'<th scope="row">(test accuracy|exported epoch|seconds of training)</th>(.*)</tr>', PAGE))
    cells = {key: re.findall(r"<td>([^<]*)", row) for key, row in rows.items()}
    assert cells["test accuracy"] == ["0.4286", "0.5714", "+0.1429"]
    assert "<small>0.158 to 0.750</small>" in rows["test accuracy"]  # Wilson's, of 3 of 7
    assert cells["exported epoch"] == ["2", "4", "+2"]
    assert cells["seconds of training"] == ["30", "50", "+20"]
    faster = replace(SECOND, figures={**FIRST.figures, "seconds": 29.6})
    row = pair.compared(FIRST, faster, "", []).partition('<th scope="row">seconds of training</th>')[2]
    assert re.findall(r"<td>([^<]*)", row.partition("</tr>")[0]) == ["30", "30", "+0"]
    timeless = replace(SECOND, figures={key: value for key, value in SECOND.figures.items() if key != "seconds"})
    row = pair.compared(FIRST, timeless, "", []).partition('<th scope="row">seconds of training</th>')[2]
    assert re.findall(r"<td>([^<]*)", row.partition("</tr>")[0]) == ["30", "–", "–"]


def test_each_figure_is_one_drawing_with_a_line_of_each_run() -> None:
    """On the same axes: the longer one ends at the right, the shorter one before; each has its own exported epoch."""
    for key in ("val_loss", "val_accuracy", "train_loss", "train_accuracy"):
        drawing = PAGE.partition(f'aria-labelledby="{key}-t ')[2].partition("</svg>")[0]
        ends = [float(end) for end in re.findall(r'<path class="line [^"]*" d="M[^"]*L([\d.]+) [\d.]+"', drawing)]
        assert ends == [211.0, 368.0]  # epochs 3 and 5 of 5
        dots = re.findall(r'<circle class="dot c\d" cx="([\d.]+)"', drawing)
        assert [float(dot) for dot in dots] == [132.5, 289.5]  # epochs 2 and 4
    shares = PAGE.partition('aria-labelledby="shares-t ')[2].partition("</svg>")[0]
    assert shares.count("<circle ") == 4  # validation and test accuracy, of two runs


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
        assert page.locator("svg[role=img]").count() == 5
