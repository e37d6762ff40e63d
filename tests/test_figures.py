"""metrics/train.json and metrics/eval.json: the same bytes after reading and writing."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.base import files
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures, TrainFigures
from tests.conftest import PROJECT

DEMO = PROJECT / "results/demo/metrics"


@pytest.mark.parametrize(
    ("kind", "changes"),
    [(TrainFigures, {}), (TrainFigures, {"stopped_early": True}), (TrainFigures, {"stopped_early": False}),
     (EvalFigures, {})],
)  # fmt: skip
def test_figures_keep_their_bytes(tmp_path: Path, kind: type[Any], changes: dict[str, Any]) -> None:
    """The same digits and order of keys; only a training with patience says whether it ended early."""
    path = tmp_path / figures.FILES[kind]
    files.write_json(path, json.loads((DEMO / path.name).read_text()) | changes)
    before = path.read_text()
    assert changes or before == (DEMO / path.name).read_text()
    figures.write(tmp_path, figures.read(tmp_path, kind))
    assert path.read_text() == before
