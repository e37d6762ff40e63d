"""DVC's plots in a real browser without a network."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.base import files
from pipeline.training.state import HISTORY
from pipeline.versioning import plots_page
from tests.conftest import PROJECT
from tests.helpers import browser
from tests.helpers.projects import call, create_project

BAD = 123456.0  # the loss of one epoch
EPOCHS = 12


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of `dvc plots show` for tables like those of a run, with one bad epoch."""
    folder = create_project(tmp_path_factory.mktemp("plots") / "project")
    rows = [(e, 9 * e, 0.1, 3 / e, 1 - 1 / e, BAD if e == 5 else 4 / e, 0.95 - 0.9 / e) for e in range(1, EPOCHS + 1)]
    files.write_csv(folder / "metrics/history.csv", HISTORY, rows)
    pairs = [("cat", "cat")] * 3 + [("cat", "dog")] + [("dog", "dog")] * 2
    files.write_csv(folder / "metrics/confusion.csv", ("actual", "predicted"), pairs)
    files.write_csv(folder / "metrics/per_class.csv", ("class", "images", "f1"), [("cat", 4, 0.75), ("dog", 2, 0.5)])
    files.write_csv(folder / "metrics/images.csv", ("class", "train"), [("cat", 40), ("dog", 20)])
    files.write_csv(folder / "metrics/calibration.csv", ("confidence", "accuracy"), [(0.5, 0.4), (0.9, 1.0)])
    call(folder, sys.executable, "-m", "pipeline.versioning.plots_page")
    mtime = (folder / plots_page.PAGE).stat().st_mtime_ns
    call(folder, sys.executable, "-m", "pipeline.versioning.plots_page")
    assert (folder / plots_page.PAGE).stat().st_mtime_ns == mtime  # it is there, and is not made again
    assert call(folder, "git", "status", "--porcelain").stdout == ""
    call(folder, "dvc", "plots", "show")
    return folder / "dvc_plots/index.html"


@pytest.fixture(scope="module")
def view(page: Path) -> list[dict[str, Any]]:
    """What a browser without a network shows of each chart: its texts by role, its lines, points and marks.

    It requests nothing but the page, and reports no error.
    """
    with browser.started() as chromium:
        tab, requests, errors = chromium.new_context(offline=True).new_page(), list[str](), list[str]()
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        tab.goto(page.as_uri())
        charts = tab.locator("svg.marks")
        charts.nth(5).wait_for()
        assert (requests, errors) == ([page.as_uri()], [])
        roles = ("role-title", "role-axis-label", "mark-text")
        return [
            {role: chart.locator(f".{role} text").all_text_contents() for role in roles}
            | {
                "lines": [path.get_attribute("d") for path in chart.locator(".mark-line path").all()],
                "points": chart.locator(".mark-symbol.role-mark path").count(),
                "marks": chart.locator(".mark-rect path, .mark-line path, .mark-symbol path").count(),
            }
            for chart in charts.all()
        ]


@browser.needs_chromium
def test_the_plots_are_drawn_without_a_network(view: list[dict[str, Any]]) -> None:
    """Each epoch is once on the axis; one bad epoch does not flatten the others; the matrix has the share of each row.

    The calibration has a dashed line from no confidence and accuracy to all, and a point of each bin.
    """
    assert all(chart["marks"] > 0 for chart in view)
    assert [chart["role-title"][0] for chart in view][:2] == ["Loss per epoch", "Accuracy per epoch"]
    loss, accuracy, matrix, _, _, calibration = view
    assert accuracy["role-axis-label"][:EPOCHS] == [str(epoch) for epoch in range(1, EPOCHS + 1)]
    assert 2 < max(float(label.replace(",", "")) for label in loss["role-axis-label"][EPOCHS:]) < 20
    assert {"0.25", "0.75", "1.00"} <= set(matrix["mark-text"])
    (line,) = calibration["lines"]
    (left, bottom), (right, top) = [tuple(map(float, point.split(","))) for point in line[1:].split("L")]
    assert (left, top) == (0, 0)
    assert right == bottom > 200
    assert calibration["points"] == 2


def test_templates_have_every_anchor_that_dvc_needs() -> None:
    """Each template of the project is JSON with DVC's place for the data, and dvc.yaml uses it."""
    text = (PROJECT / "dvc.yaml").read_text()
    templates = sorted((PROJECT / ".dvc/plots").glob("*.json"))
    assert [path.stem for path in templates] == ["calibration", "confusion_shares", "curve"]
    for path in templates:
        assert json.loads(path.read_text())["data"] == {"values": "<DVC_METRIC_DATA>"}
        assert f"template: {path.stem}\n" in text
