"""DVC's plots in a real browser without a network."""

import json
import sys
from pathlib import Path

from pipeline.base import files
from pipeline.training.state import HISTORY
from tests.conftest import PROJECT
from tests.helpers import browser
from tests.helpers.projects import call, create_project

BAD = 123456.0  # the loss of one epoch
EPOCHS = 12


def show_plots(folder: Path) -> Path:
    """The page of `dvc plots show` for tables like those of a run, with one bad epoch."""
    rows = [(e, 9 * e, 0.1, 3 / e, 1 - 1 / e, BAD if e == 5 else 4 / e, 0.95 - 0.9 / e) for e in range(1, EPOCHS + 1)]
    files.write_csv(folder / "metrics/history.csv", HISTORY, rows)
    pairs = [("cat", "cat")] * 3 + [("cat", "dog")] + [("dog", "dog")] * 2
    files.write_csv(folder / "metrics/confusion.csv", ("actual", "predicted"), pairs)
    files.write_csv(folder / "metrics/per_class.csv", ("class", "images", "f1"), [("cat", 4, 0.75), ("dog", 2, 0.5)])
    files.write_csv(folder / "metrics/images.csv", ("class", "train"), [("cat", 40), ("dog", 20)])
    files.write_csv(folder / "metrics/calibration.csv", ("confidence", "accuracy"), [(0.5, 0.4), (0.9, 1.0)])
    call(folder, sys.executable, "-m", "pipeline.reporting.plots_page")
    assert call(folder, "git", "status", "--porcelain").stdout == ""
    call(folder, "dvc", "plots", "show")
    return folder / "dvc_plots/index.html"


@browser.needs_chromium
def test_the_plots_are_drawn_without_a_network(tmp_path: Path) -> None:
    """Nothing but the page is requested. Each epoch is once on the axis, and one bad epoch does not flatten the others.

    The matrix has the share of each row. The calibration has a line for no error, and a point of each bin.
    """
    page = show_plots(create_project(tmp_path / "project"))
    with browser.started() as chromium:
        tab, requests, errors = chromium.new_context(offline=True).new_page(), list[str](), list[str]()
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        tab.goto(page.as_uri())
        charts = tab.locator("svg.marks")
        charts.nth(5).wait_for()
        assert (requests, errors) == ([page.as_uri()], [])
        loss, accuracy, matrix, _, _, calibration = charts.all()
        loss_labels, accuracy_labels, shares = (
            chart.locator(f".{role} text").all_text_contents()
            for chart, role in ((loss, "role-axis-label"), (accuracy, "role-axis-label"), (matrix, "mark-text"))
        )
        assert accuracy_labels[:EPOCHS] == [str(epoch) for epoch in range(1, EPOCHS + 1)]
        assert 2 < max(float(label.replace(",", "")) for label in loss_labels[EPOCHS:]) < 20
        assert {"0.25", "0.75", "1.00"} <= set(shares)
        assert calibration.locator(".mark-line path").count() == 1
        assert calibration.locator(".mark-symbol.role-mark path").count() == 2


def test_templates_have_every_anchor_that_dvc_needs() -> None:
    """Each template of the project is JSON with DVC's place for the data, and dvc.yaml uses it."""
    text = (PROJECT / "dvc.yaml").read_text()
    templates = sorted((PROJECT / ".dvc/plots").glob("*.json"))
    assert [path.stem for path in templates] == ["calibration", "confusion_shares", "curve"]
    for path in templates:
        assert json.loads(path.read_text())["data"] == {"values": "<DVC_METRIC_DATA>"}
        assert f"template: {path.stem}\n" in text
