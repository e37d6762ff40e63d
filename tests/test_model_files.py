"""The files that decide an answer of `predict`: those of dvc.lock, or with all their keys. No model is computed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.answers import classify
from pipeline.answers.classify import Request
from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.config.params import Params
from pipeline.evaluation import acceptance
from pipeline.models import description
from pipeline.versioning import dvc_lock
from tests.helpers.damage import put
from tests.helpers.refusals import refuses

WEIGHTS = "a" * 64
VIEW = {"packed_size": 40, "resize": 36, "crop": 32, "grey": "full", "fit": "none"}
DESCRIPTION = {
    "model": "resnet18", "classes": ["a", "b"], "view": VIEW, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5],
    "export": "last", "epoch": 1, "arithmetic": "native", "weights": WEIGHTS,
}  # fmt: skip
NAMES = ("model.json", "model.safetensors", "acceptance.json", "model.onnx")
SCORES = acceptance.make(WEIGHTS, 0.95, [0.5] * 60, 2)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of a model, in a project whose dvc.lock names them."""
    monkeypatch.chdir(tmp_path)
    folder = Path("models")
    files.write_json(folder / "model.json", DESCRIPTION)
    acceptance.write(folder, SCORES)
    for name in ("model.safetensors", "model.onnx"):
        files.write_text(folder / name, name)
    outs = "".join(f"    - path: models/{name}\n      md5: {files.md5(folder / name)}\n" for name in NAMES)
    dvc_lock.LOCK.write_text(f"schema: '2.0'\nstages:\n  train:\n    cmd: x\n    outs:\n{outs}")
    return folder


def ask(model: Path | None) -> None:
    """Ask for the answers about no image."""
    list(classify.answers(Request((), model), Params(), list[UserError]()))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model.json", put(classes=["b", "a"])),
        ("model.json", put(weights=None)),
        ("model.safetensors", lambda path: path.write_text("other")),
        ("acceptance.json", put(coverage=0.5)),
    ],
)
def test_a_file_that_decides_is_that_of_the_lock(models: Path, name: str, change: Callable[[Path], object]) -> None:
    """However the model is named, also by its whole path. Without model.onnx torch computes."""
    (models / "model.onnx").unlink()
    classify.check_files(models, *NAMES)
    change(models / name)
    for given in (models, models / "model.safetensors"):
        with refuses((models / name, "differs")):
            ask(given)
        with refuses((models.absolute() / name, "differs")):
            ask(given.absolute())
    with refuses((models / name, "differs")):
        ask(None)


def test_a_model_onnx_that_is_not_that_of_the_lock_does_not_compute(models: Path) -> None:
    """In a folder torch computes then; asked for by name, it is refused."""
    (models / "model.onnx").write_text("other")
    described = description.load(models)
    assert "dvc.lock" in str(classify.onnx_or_reason(models, described, "cpu"))
    with refuses((models / "model.onnx", "differs")):
        ask(models / "model.onnx")


@pytest.mark.parametrize("lock", ["none", "of other files", "cut"])
def test_without_a_lock_every_key_is_needed(models: Path, lock: str) -> None:
    """A model.json without `weights` would be of any weights; with all its keys it is used."""
    text, described = dvc_lock.LOCK.read_text(), (models / "model.json").read_text()
    dvc_lock.LOCK.unlink()
    if lock != "none":
        dvc_lock.LOCK.write_text(text.replace("models/", "others/") if lock == "of other files" else text[:-20])
    view = {key: VIEW[key] for key in ("packed_size", "resize", "crop")}
    keys: tuple[dict[str, Any], ...] = ({"weights": None}, {"weights": ""}, {"arithmetic": None}, {"view": view})
    for change in keys:
        (models / "model.json").write_text(described)
        classify.check_files(models, *NAMES)
        put(**change)(models / "model.json")
        for given in (None, models, models / "model.safetensors"):
            with refuses(("models/model.json", "damaged")):
                ask(given)


def test_scores_are_of_as_many_classes_as_the_model_has() -> None:
    """Else they are refused; those of other weights give no limit anyway."""
    model = cast(Any, SimpleNamespace(classes=("a", "b"), weights=WEIGHTS))
    assert classify.limit_of(SCORES, model, Request(())).highest == 0.5
    with refuses(("acceptance.json", "differs")):
        classify.limit_of(replace(SCORES, classes=1), model, Request(()))
    assert classify.limit_of(replace(SCORES, classes=1, weights="b" * 64), model, Request(())).reason
