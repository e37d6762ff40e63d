"""Prediction from the command line, with a small untrained model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from pipeline import files, machine, predict
from pipeline.errors import Refusal
from tests.helpers import starts
from tests.test_evaluate import CLASSES, make, run


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project's folder after evaluate."""
    folder = tmp_path_factory.mktemp("predict")
    make(folder)
    done = run(folder, processes=1)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def folder(evaluated: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder as the working folder."""
    monkeypatch.chdir(evaluated)
    return evaluated


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m pipeline.predict …` in `folder`."""
    command = [sys.executable, "-m", "pipeline.predict", *arguments]
    return starts.run(command, cwd=folder, encoding="utf-8")


def test_a_test_picture_gets_the_evaluations_probabilities(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The probabilities of every test picture are those of predictions.csv to rounding, whatever is asked beside it."""
    rows = files.read_csv(folder / "metrics/predictions.csv")
    given = [Path("data/images") / row["path"] for row in reversed(rows)]
    assert predict.predict(given, as_json=True, device="cpu") == 0
    found = json.loads(capsys.readouterr().out)
    assert [answer["path"] for answer in found] == [str(path) for path in given]
    for answer, row in zip(found, reversed(rows), strict=True):
        assert list(answer["probabilities"]) == list(CLASSES)
        assert list(answer["probabilities"].values()) == pytest.approx(
            [float(row[f"p_{name}"]) for name in CLASSES], abs=1e-5
        )
        assert (
            answer["probability"] == answer["probabilities"][answer["class"]] == max(answer["probabilities"].values())
        )
        assert answer["class"] == row["prediction"]


def test_files_folders_and_what_is_no_picture(folder: Path, tmp_path: Path) -> None:
    """Files and folders are done in the given order; junk is left out, a broken file is named, and the status is 1."""
    (tmp_path / "two/__MACOSX").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for name in ("two/b.png", "two/A.PNG", "one.png", "two/__MACOSX/b.png", "two/.hidden.png"):
        Image.new("RGB", (50, 40), "red").save(tmp_path / name, format="PNG")
    (tmp_path / "two/notes.txt").write_text("no picture")
    done = call(folder, *(str(tmp_path / name) for name in ("two", "missing.png", "empty", "one.png")))
    assert [line.rpartition(": ")[0] for line in done.stdout.splitlines()] == [
        str(tmp_path / name) for name in ("two/A.PNG", "two/b.png", "one.png")
    ]
    answer, probability = done.stdout.splitlines()[0].rpartition(": ")[2].split()
    assert answer in CLASSES
    assert 1 / 3 <= float(probability) <= 1
    errors = done.stderr.splitlines()
    assert [line.split(": ")[:3] for line in errors] == [
        ["predict", str(tmp_path / "two/notes.txt"), errors[0].split(": ")[2]],
        ["predict", str(tmp_path / "missing.png"), "No such file or directory; give the path of a picture"],
        ["predict", str(tmp_path / "empty"), "no file in this folder; give pictures, or a folder with some"],
    ]
    assert done.returncode == 1


def test_one_picture(folder: Path) -> None:
    """A picture alone prints one line, nothing on stderr, and ends with status 0."""
    done = call(folder, "data/images/daisy/00 é.png")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("data/images/daisy/00 é.png: ")
    assert len(done.stdout.splitlines()) == 1


def test_nothing_but_refused_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With no picture among the given, --json still prints a list, an empty one."""
    assert predict.predict([Path("params.yaml")], as_json=True, device="cpu") == 1
    assert json.loads(capsys.readouterr().out) == []


def test_a_machine_without_a_gpu(folder: Path) -> None:
    """--device cuda without a GPU is refused by name."""
    if machine.read().cuda_devices > 0:
        pytest.skip("this machine has a GPU")
    with pytest.raises(Refusal) as refusal:
        predict.predict([Path("x.png")], as_json=False, device="cuda")
    assert str(refusal.value) == (
        "--device: 'cuda' needs an NVIDIA GPU and its driver (found: none); allowed here: cpu"
    )


def test_no_model_yet(project: Path, tmp_path: Path) -> None:
    """Without a model one line says how to get one, even where the params could not train on this machine."""
    (tmp_path / "params.yaml").write_bytes((project / "params.yaml").read_bytes())
    done = call(tmp_path, "x.png")
    assert done.returncode == 1
    assert done.stderr == (
        "predict: models/model.json: not found; train a model (dvc repro) or fetch a shared one (dvc pull)\n"
    )
