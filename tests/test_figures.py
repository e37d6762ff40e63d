"""metrics/train.json and metrics/eval.json: the same bytes after reading and writing; what does not fit is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.errors import UserError
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures, TrainFigures
from tests.conftest import PROJECT

DEMO = PROJECT / "results/demo/metrics"
KINDS = pytest.mark.parametrize("kind", [TrainFigures, EvalFigures])


@KINDS
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


def damaged(kind: type[Any]) -> list[str]:
    """Texts that are no figures: of another form, without a key, with one more, and with a value out of range."""
    whole = json.loads((DEMO / figures.FILES[kind]).read_text())
    share = "accuracy" if kind is EvalFigures else "val_accuracy"
    lacking = [{key: whole[key] for key in whole if key != name} for name in whole]
    others = [whole | change for change in ({"other": 1.0}, {share: "high"}, {share: 1.5}, {share: None})]
    return ["", "{", "[]", json.dumps(whole).replace(f"{whole[share]}", "NaN"), *map(json.dumps, lacking + others)]


@KINDS
def test_damaged_figures_are_refused(tmp_path: Path, kind: type[Any]) -> None:
    """The fault has the file, or the name of the text, and the remedy."""
    path = tmp_path / figures.FILES[kind]
    for text in damaged(kind):
        path.write_text(text)
        with pytest.raises(UserError) as of_file:
            figures.read(tmp_path, kind)
        with pytest.raises(UserError) as of_text:
            figures.parse(text, kind, "eval.json of HEAD", "take another one")
        (fault,), (other,) = of_file.value.faults, of_text.value.faults
        assert (fault.key, fault.kind) == (str(path), "damaged")
        assert "repro" in fault.remedy
        assert (other.key, other.kind, other.remedy) == ("eval.json of HEAD", "damaged", "take another one")
