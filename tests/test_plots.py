"""DVC's plots: what the page of `dvc plots show` has."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.base import files
from pipeline.learning.state import HISTORY
from tests.helpers.projects import call, create_project

EPOCHS: list[tuple[Any, ...]] = [tuple(10 * epoch + column for column in range(len(HISTORY))) for epoch in (1, 2)]
# plot in dvc.yaml → its table, the columns, and the rows
TABLES: dict[str, tuple[str, Sequence[str], list[tuple[Any, ...]]]] = {
    "Loss": ("history", HISTORY, EPOCHS),
    "Accuracy": ("history", HISTORY, EPOCHS),
    "Confusion": ("confusion", ("actual", "predicted"), [("cat", "cat"), ("cat", "dog")]),
    "F1 by class": ("per_class", ("class", "images", "f1"), [("cat", 4, 0.75), ("dog", 2, 0.5)]),
    "Training images": ("images", ("class", "train"), [("cat", 40), ("dog", 20)]),
    "Calibration": ("calibration", ("confidence", "accuracy"), [(0.53, 0.41), (0.93, 1.0)]),
}


def test_dvc_plots_show_has_a_plot_of_each_table(tmp_path: Path) -> None:
    """Each plot has the values of its table, and DVC has filled every place of its template."""
    project = create_project(tmp_path / "project")
    for name, header, rows in TABLES.values():
        files.write_csv(project / f"metrics/{name}.csv", header, rows)
    call(project, "dvc", "plots", "show")
    page = (project / "dvc_plots/index.html").read_text()
    plots = [json.loads(plot) for plot in re.findall(r"var spec = (.*);\n", page)]
    for plot, (_, header, rows) in zip(plots, TABLES.values(), strict=True):
        values = [tuple(value[column] for column in header) for value in plot["data"]["values"]]
        assert set(values) == {tuple(map(str, row)) for row in rows}
    assert "<DVC_METRIC" not in page
