"""The stage evaluate, on a small untrained model and packed images of its own."""

import io
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

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
from tests.helpers.evaluations import CLASSES, config_of, make, run
from tests.helpers.refusals import refuses
from tests.helpers.terminals import Screen

OUTPUTS = [f"metrics/{name}" for name in ("eval.json", "per_class.csv", "confusion.csv", "calibration.csv",
                                          "predictions.csv")]  # fmt: skip


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project's folder after evaluate with one process."""
    folder = tmp_path_factory.mktemp("evaluated")
    make(folder)
    done = run(folder, processes=1)
    assert done.returncode == 0, done.stderr
    assert "23 test images" in done.stdout
    return folder


@pytest.fixture
def copy(whole_run: Path, tmp_path: Path) -> Path:
    """A copy of that folder to change, without the outputs."""
    folder = tmp_path / "copy"
    shutil.copytree(whole_run, folder)
    for name in OUTPUTS:
        (folder / name).unlink()
    return folder


def figures_in(folder: Path) -> dict[str, float]:
    return cast(dict[str, float], json.loads((folder / "metrics/eval.json").read_text()))


@pytest.mark.parametrize("processes", [2, 3])
def test_the_number_of_processes_changes_no_byte(whole_run: Path, copy: Path, processes: int) -> None:
    """With 2 and 3 processes, and for a model trained in bf16, all outputs are those of one process in fp32."""
    write_params(copy / "params.yaml", on_cpu(read_params(copy / "params.yaml"), train__precision="bf16"))
    done = run(copy, processes)
    assert done.returncode == 0, done.stderr
    for name in OUTPUTS:
        assert files.sha256(copy / name) == files.sha256(whole_run / name), name


def test_a_node_evaluates_alone(whole_run: Path, copy: Path) -> None:
    """Also the second of two nodes, with the params of a training on both."""
    lines = {"run__launcher": "spawn", "run__nodes": 2, "run__node_rank": 1, "run__processes": 2}
    raw = on_cpu(read_params(copy / "params.yaml"), train__parallel="ddp", run__rendezvous="node0:29400", **lines)
    write_params(copy / "params.yaml", raw)
    done = starts.run([sys.executable, "-m", "pipeline", "evaluate"], cwd=copy)
    assert done.returncode == 0, done.stderr
    for name in OUTPUTS:
        assert files.sha256(copy / name) == files.sha256(whole_run / name), name


def test_every_test_image_is_counted_once(whole_run: Path) -> None:
    """predictions.csv has the test lines of split.csv in their order, and the figures follow from its columns."""
    lines = [line for line in files.read_csv(whole_run / "data/split.csv") if line["split"] == "test"]
    rows = files.read_csv(whole_run / "metrics/predictions.csv")
    assert [(row["path"], row["label"]) for row in rows] == [(line["path"], line["class"]) for line in lines]
    assert list(rows[0]) == ["path", "label", "prediction", "p_daisy", "p_rose", "p_tulip"]

    probabilities = np.array([[float(row[f"p_{name}"]) for name in CLASSES] for row in rows])
    labels = np.array([CLASSES.index(row["label"]) for row in rows])
    assert probabilities.sum(1) == pytest.approx(1)
    assert [CLASSES[best] for best in probabilities.argmax(1)] == [row["prediction"] for row in rows]
    figures = figures_in(whole_run)
    summary = metrics.summary(np.log(probabilities), labels)
    assert len(lines) == 23
    assert figures["accuracy"] == summary.accuracy
    by_class = metrics.class_table(metrics.confusion(probabilities.argmax(1), labels, 3), CLASSES)
    assert [list(row.values()) for row in files.read_csv(whole_run / "metrics/per_class.csv")] == [
        [row.name, str(row.images), repr(row.precision), repr(row.recall), repr(row.f1)] for row in by_class
    ]
    assert (figures["nll"], figures["ece"]) == pytest.approx((summary.nll, summary.ece))


def test_tables_for_plots(whole_run: Path) -> None:
    """confusion.csv has one row per image, which DVC's template counts; calibration.csv has the filled bins."""
    rows = files.read_csv(whole_run / "metrics/predictions.csv")
    assert files.read_csv(whole_run / "metrics/confusion.csv") == [
        {"actual": row["label"], "predicted": row["prediction"]} for row in rows
    ]
    bins = files.read_csv(whole_run / "metrics/calibration.csv")
    assert set(bins[0]) == {"low", "high", "count", "confidence", "accuracy"}
    assert sum(int(row["count"]) for row in bins) == len(rows)
    error = sum(int(row["count"]) * abs(float(row["confidence"]) - float(row["accuracy"])) for row in bins) / len(rows)
    assert error == pytest.approx(figures_in(whole_run)["ece"])


def test_a_bar_counts_the_batches(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, while they are computed. Elsewhere there is none."""
    for screen, percentages in ((Screen(), {"0", "100"}), (io.StringIO(), set[str]())):
        monkeypatch.setattr(sys, "stderr", screen)
        evaluate.run(config_of(copy))
        assert percentages == {"0", "100"} & set(re.findall(r"evaluate: +(\d+)%", screen.getvalue()))


MODEL, WEIGHTS = "models/model.json", "models/model.safetensors"


def with_text(path: str, old: str, new: str) -> Callable[[Path], None]:
    """A change of a text in the project's folder."""
    return lambda folder: files.write_text(folder / path, (folder / path).read_text().replace(old, new))


def save_weights(folder: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    """Write other weights, which model.json names."""
    before = files.sha256(folder / WEIGHTS)
    save_file(tensors, folder / WEIGHTS)
    with_text(MODEL, before, files.sha256(folder / WEIGHTS))(folder)


@pytest.mark.parametrize(
    ("change", "key", "kind"),
    [
        (lambda folder: (folder / MODEL).unlink(), MODEL, "missing"),
        (lambda folder: (folder / WEIGHTS).unlink(), WEIGHTS, "missing"),
        (lambda folder: os.truncate(folder / WEIGHTS, 10_000), WEIGHTS, "damaged"),
        (lambda folder: save_weights(folder, {"other": np.zeros(3, np.float32)}), WEIGHTS, "differs"),
        (with_text("data/split.csv", "rose", "peony"), MODEL, "differs"),
        (with_text(MODEL, '"packed_size": 40', '"packed_size": 64'), MODEL, "differs"),
        (with_text(MODEL, '"fit": "none"', '"fit": "squash"'), MODEL, "differs"),
        (with_text(MODEL, "0.229", "0.0"), MODEL, "damaged"),  # pixels divided by zero
        (with_text("data/split.csv", ",test,", ",val,"), "data/split.csv", "missing"),  # no test image
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


def test_a_broken_model(copy: Path) -> None:
    """A model whose weights or answers are not numbers is refused before anything is written."""
    weights = copy / "models/model.safetensors"
    tensors = load_file(weights)
    largest = np.finfo(np.float32).max
    for kernel, bias, key in ((0, math.nan, str(weights)), (largest, largest, "the model's outputs")):
        tensors |= {"fc.weight": np.full_like(tensors["fc.weight"], kernel), "fc.bias": np.full(3, bias, np.float32)}
        save_weights(copy, tensors)
        with refuses((key, "damaged")):
            evaluate.run(config_of(copy))
    assert not (copy / "metrics/eval.json").exists()
