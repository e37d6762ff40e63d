"""The stage evaluate, on a small untrained model and packed images of its own."""

import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from pipeline.base import files
from pipeline.base.errors import Kind
from pipeline.evaluation import metrics
from pipeline.stages import evaluate
from tests.conftest import on_cpu, read_params, write_params
from tests.helpers import starts
from tests.helpers.damage import edited
from tests.helpers.evaluations import CLASSES, config_of
from tests.helpers.refusals import refuses
from tests.helpers.terminals import Screen
from tests.helpers.trainings import digests

OUTPUTS = [f"metrics/{name}" for name in ("eval.json", "per_class.csv", "confusion.csv", "calibration.csv",
                                          "predictions.csv")]  # fmt: skip


@pytest.fixture
def copy(with_onnx: Path, tmp_path: Path) -> Path:
    """A copy of that folder to change, without the outputs."""
    folder = shutil.copytree(with_onnx, tmp_path / "copy")
    for name in OUTPUTS:
        (folder / name).unlink()
    return folder


def test_neither_processes_nor_the_precision_change_a_byte(with_onnx: Path, copy: Path) -> None:
    """On the second of two nodes, which evaluates alone with its two processes, for a training in bf16."""
    lines = {"run__launcher": "spawn", "run__nodes": 2, "run__node_rank": 1, "run__processes": 4}
    lines |= {"train__parallel": "ddp", "train__precision": "bf16", "run__rendezvous": "node0:29400"}
    write_params(copy / "params.yaml", on_cpu(read_params(copy / "params.yaml"), **lines))
    done = starts.run([sys.executable, "-m", "pipeline", "evaluate"], cwd=copy)
    assert (done.returncode, "23 test images" in done.stdout) == (0, True), done.stderr
    assert digests(copy, *OUTPUTS) == digests(with_onnx, *OUTPUTS)


def test_every_test_image_is_counted_once(with_onnx: Path) -> None:
    """predictions.csv has the test lines of split.csv in their order, and figures and tables follow from it."""
    lines = [line for line in files.read_csv(with_onnx / "data/split.csv") if line["split"] == "test"]
    names = ("predictions", "per_class", "confusion", "calibration")
    rows, by_class, pairs, bins = (files.read_csv(with_onnx / f"metrics/{name}.csv") for name in names)
    assert len(lines) == 23
    assert [(row["path"], row["label"]) for row in rows] == [(line["path"], line["class"]) for line in lines]
    assert list(rows[0]) == ["path", "label", "prediction", "p_daisy", "p_rose", "p_tulip"]
    assert pairs == [{"actual": row["label"], "predicted": row["prediction"]} for row in rows]

    probabilities = np.array([[float(row[f"p_{name}"]) for name in CLASSES] for row in rows])
    labels = np.array([CLASSES.index(row["label"]) for row in rows])
    assert probabilities.sum(1) == pytest.approx(1)
    assert [CLASSES[best] for best in probabilities.argmax(1)] == [row["prediction"] for row in rows]
    figures = json.loads((with_onnx / "metrics/eval.json").read_text())
    summary = metrics.summary(np.log(probabilities), labels)
    assert figures["accuracy"] == summary.accuracy
    assert (figures["nll"], figures["ece"]) == pytest.approx((summary.nll, summary.ece))
    table = metrics.class_table(metrics.confusion(probabilities.argmax(1), labels, 3), CLASSES)
    assert [list(row.values()) for row in by_class] == [
        [row.name, str(row.images), repr(row.precision), repr(row.recall), repr(row.f1)] for row in table
    ]
    error = sum(int(row["count"]) * abs(float(row["confidence"]) - float(row["accuracy"])) for row in bins) / len(rows)
    assert error == pytest.approx(figures["ece"])


def test_a_bar_counts_the_batches(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, while they are computed. Elsewhere there is none."""
    for screen, percentages in ((Screen(), {"0", "100"}), (io.StringIO(), set[str]())):
        monkeypatch.setattr(sys, "stderr", screen)
        evaluate.run(config_of(copy))
        assert percentages == {"0", "100"} & set(re.findall(r"evaluate: +(\d+)%", screen.getvalue()))


MODEL, WEIGHTS = "models/model.json", "models/model.safetensors"


def save_weights(folder: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    """Write other weights, which model.json names."""
    before = files.sha256(folder / WEIGHTS)
    save_file(tensors, folder / WEIGHTS)
    edited(MODEL, before, files.sha256(folder / WEIGHTS))(folder)


@pytest.mark.parametrize(
    ("change", "key", "kind"),
    [
        (lambda folder: (folder / MODEL).unlink(), MODEL, "missing"),
        (lambda folder: (folder / WEIGHTS).unlink(), WEIGHTS, "missing"),
        (lambda folder: save_weights(folder, {"other": np.zeros(3, np.float32)}), WEIGHTS, "differs"),
        (edited("data/split.csv", "rose", "peony"), MODEL, "differs"),
        (edited(MODEL, '"packed_size": 40', '"packed_size": 64'), MODEL, "differs"),
        (edited(MODEL, '"fit": "none"', '"fit": "squash"'), MODEL, "differs"),
        (edited("data/split.csv", ",test,", ",val,"), "data/split.csv", "missing"),  # no test image
    ],
)
def test_what_does_not_belong_together_is_refused(
    copy: Path, change: Callable[[Path], object], key: str, kind: Kind
) -> None:
    """A missing or damaged model, and one of other classes, images or code: predictions would be wrong."""
    change(copy)
    with refuses((copy / key, kind)):
        evaluate.run(config_of(copy))
    assert not (copy / "metrics/eval.json").exists()


def test_a_model_whose_answers_are_no_numbers_is_refused(copy: Path) -> None:
    """Before anything is written."""
    tensors, largest = load_file(copy / WEIGHTS), np.finfo(np.float32).max
    tensors |= {"fc.weight": np.full_like(tensors["fc.weight"], largest), "fc.bias": np.full(3, largest, np.float32)}
    save_weights(copy, tensors)
    with refuses(("the model's outputs", "damaged")):
        evaluate.run(config_of(copy))
    assert not (copy / "metrics/eval.json").exists()
