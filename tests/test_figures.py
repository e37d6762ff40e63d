"""metrics/train.json and metrics/eval.json: the same bytes after reading and writing."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures, TrainFigures
from tests.conftest import PROJECT

DEMO = PROJECT / "results/demo/metrics"


@pytest.mark.parametrize("kind", [TrainFigures, EvalFigures])
def test_the_demos_figures_keep_their_bytes(tmp_path: Path, kind: type[Any]) -> None:
    """What is read and written again has the same digits and the same order of keys."""
    figures.write(tmp_path, figures.read(DEMO, kind))
    assert (tmp_path / figures.FILES[kind]).read_bytes() == (DEMO / figures.FILES[kind]).read_bytes()


@pytest.mark.parametrize("stopped_early", [True, False])
def test_a_training_with_patience_says_whether_it_ended_early(tmp_path: Path, stopped_early: bool) -> None:
    """Both answers are written; without patience the key is absent."""
    text = json.dumps(json.loads((DEMO / "train.json").read_text()) | {"stopped_early": stopped_early})
    (tmp_path / "train.json").write_text(text)
    figures.write(tmp_path, read := figures.read(tmp_path, TrainFigures))
    assert read.stopped_early is stopped_early
    assert json.loads((tmp_path / "train.json").read_text()) == json.loads(text)
    assert figures.read(DEMO, TrainFigures).stopped_early is None
