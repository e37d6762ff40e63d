"""`perennial plan`: what it says of each stage, compared with dvc.lock, with edits, and with what a run really does."""

import json
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.harness.workspace import STAGES
from pipeline.base import files
from pipeline.commands import plan
from pipeline.planning import forecast
from pipeline.planning.forecast import Forecast
from pipeline.versioning import dvc_lock, in_process
from tests.conftest import read_params, set_params, write_params
from tests.helpers.damage import edited
from tests.helpers.projects import call

CACHE = Path(".dvc/cache")


def predict() -> dict[str, Forecast]:
    return {each.stage: each for each in forecast.forecast()}


def states(forecasts: dict[str, Forecast]) -> dict[str, str]:
    """The states that are not `unchanged`."""
    return {stage: each.state for stage, each in forecasts.items() if each.state != "unchanged"}


def really(finished_copy: Path) -> dict[str, str]:
    """Run `perennial repro`. Returns what it did with each stage that was not unchanged."""
    (finished_copy / in_process.SECONDS).unlink(missing_ok=True)
    stdout = call(finished_copy, sys.executable, "-m", "pipeline", "repro").stdout
    names = re.findall(r"taken from DVC's cache: ([\w, ]+)", stdout)
    done = {stage: "cache" for names in names for stage in names.split(", ")}
    return done | dict.fromkeys(in_process.read_notes(in_process.SECONDS), "runs")


def reasons(each: Forecast) -> set[tuple[str, str, str]]:
    """Kind, name and change of the reasons that are a stage's own."""
    return {(reason.kind, reason.name, reason.change) for reason in each.reasons if reason.kind != "stage"}


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    """What `perennial plan --json` prints."""
    assert plan.main(Namespace(json=True)) == 0
    return json.loads(capsys.readouterr().out)


def test_after_a_run_nothing_runs_and_nothing_is_written(
    finished_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each stage is unchanged and its time known, and no file changes. What this machine refuses is named."""
    paths = [path for path in finished_copy.rglob("*") if "__pycache__" not in path.parts]
    before = [path.lstat() for path in paths]
    said = answer(capsys)
    stages = [(each["stage"], each["state"], each["reasons"], each["seconds"] > 0) for each in said["stages"]]
    assert (stages, said["refused"]) == ([(stage, "unchanged", [], True) for stage in STAGES], [])
    assert [path for path in finished_copy.rglob("*") if "__pycache__" not in path.parts] == paths
    after = [path.lstat() for path in paths]
    assert [(one.st_ino, one.st_size, one.st_mtime_ns) for one in after] == [
        (one.st_ino, one.st_size, one.st_mtime_ns) for one in before
    ]
    set_params(finished_copy, run__processes=2)
    said = answer(capsys)
    assert any("run.processes" in fault for fault in said["refused"])
    assert said["stages"][STAGES.index("train")]["state"] == "runs"


def test_a_param_names_the_stages_that_track_it_and_those_after_them(finished_copy: Path) -> None:
    """Of the stage that tracks a changed param: old and new value; the stages after it may run; undone: unchanged."""
    raw = read_params(finished_copy / "params.yaml")
    set_params(finished_copy, train__lr=0.5)
    forecasts = predict()
    # card and report show the param.
    assert states(forecasts) == {
        "train": "runs", "evaluate": "maybe", "export": "maybe", "card": "runs", "report": "runs"
    }  # fmt: skip
    (reason,) = forecasts["train"].reasons
    assert (reason.kind, reason.name, dict(reason.values)) == ("param", "train.lr", {"old": 0.01, "new": 0.5})
    assert [(reason.kind, reason.name) for reason in forecasts["evaluate"].reasons] == [("stage", "train")]
    assert [reason.name for reason in forecasts["export"].reasons] == ["train", "evaluate"]
    write_params(finished_copy / "params.yaml", raw)
    edited("dvc.yaml", "pipeline report\n", "pipeline  report\n")(finished_copy)
    forecasts = predict()
    assert states(forecasts) == {"report": "runs"}
    assert reasons(forecasts["report"]) == {("command", "report", "changed")}
    smoothing = raw["train"].pop("label_smoothing")  # a setting that the params had no line for
    write_params(finished_copy / "params.yaml", raw)
    (reason,) = predict()["train"].reasons
    assert (reason.name, [*reason.values]) == ("train.label_smoothing", ["old"])
    set_params(finished_copy, train__label_smoothing=smoothing, train__parallel="ddp", run__processes=2)
    values = {reason.name: tuple(reason.values.values()) for reason in predict()["train"].reasons}
    assert values == {"train.parallel": ("single", "ddp"), "run.processes": (1, 2)}


def test_code_that_changed_is_named(finished_copy: Path) -> None:
    """The stages that depend on a file of the pipeline run, and name it.

    Code that serves, and what .dvcignore leaves out, does not count.
    """
    (finished_copy / "pipeline/data/.packed.py.swp").write_text("an editor")
    (finished_copy / "pipeline/data/__pycache__").mkdir(exist_ok=True)
    (finished_copy / "pipeline/data/__pycache__/packed.pyc").write_text("compiled")
    serving = finished_copy / "pipeline/running/launch.py"
    serving.write_text(serving.read_text() + "# changed\n")
    assert states(predict()) == {}
    path, added = "pipeline/dataset/packed.py", "pipeline/data/another.py"
    source = (finished_copy / path).read_text()
    (finished_copy / path).write_text(source + "# changed\n")
    (finished_copy / added).write_text("")
    forecasts = predict()
    folders = {Path("pipeline/data"), Path("pipeline/dataset")}
    dependent = {stage for stage in STAGES if folders & {*dvc_lock.deps(stage)}}
    assert {stage for stage, each in forecasts.items() if each.state == "runs"} == dependent
    assert dependent < {*STAGES}
    files = {name: word for reason in forecasts["split"].reasons for name, word in reason.files.items()}
    assert files == {path: "changed", added: "new"}
    assert reasons(forecasts["train"]) == {("input", "pipeline/dataset", "changed")}
    (finished_copy / path).unlink()
    (finished_copy / added).unlink()
    assert [reason.files for reason in predict()["split"].reasons] == [{path: "removed"}]


def test_an_output_that_is_lost_comes_from_the_cache(finished_copy: Path) -> None:
    """A lost or changed output comes from the cache, and what reads it stays; without its object, its stage runs."""
    image = next((finished_copy / "data/images").rglob("*.png"))
    content = image.read_bytes()
    files.remove(image)
    image.write_bytes(content + b"more")
    (reason,) = predict()["download"].reasons
    assert (reason.kind, dict(reason.files)) == ("output", {str(image.relative_to(finished_copy)): "changed"})
    image.write_bytes(content)
    (finished_copy / "data/split.csv").unlink()
    (finished_copy / "metrics/eval.json").write_text("{}")
    forecasts = predict()
    assert states(forecasts) == {"split": "cache", "evaluate": "cache"}
    assert reasons(forecasts["split"]) == {("output", "data/split.csv", "missing")}
    assert reasons(forecasts["evaluate"]) == {("output", "metrics/eval.json", "changed")}
    md5 = dvc_lock.read()["split"]["outs"]["data/split.csv"]
    cache_object = CACHE / "files/md5" / md5[:2] / md5[2:]
    content = cache_object.read_bytes()
    cache_object.unlink()
    forecasts = predict()
    assert (forecasts["split"].state, forecasts["prepare"].state) == ("runs", "maybe")
    (finished_copy / "data/split.csv").write_bytes(content)
    assert reasons(predict()["split"]) == {("output", "data/split.csv", "not in DVC's cache")}


@pytest.mark.slow("a pipeline that DVC restores; make test has the plans of a finished one")
def test_a_run_without_a_lock_takes_all_from_the_run_cache(finished_copy: Path) -> None:
    """The run cache has an entry for exactly these inputs of each stage; a real run takes them. In a clone all run."""
    lock = Path("dvc.lock").read_text()
    Path("dvc.lock").unlink()
    assert states(predict()) == dict.fromkeys(STAGES, "cache")
    stdout = call(finished_copy, "dvc", "repro").stdout
    assert {*re.findall(r"Stage '(\w+)' is cached", stdout)} == {*STAGES}
    assert states(predict()) == {}
    for name in (CACHE, "data/images", "data/packed", "data/weights", "models", "reports"):
        shutil.rmtree(name)
    Path("dvc.lock").unlink()
    forecasts = predict()
    assert states(forecasts) == dict.fromkeys(STAGES, "runs")
    assert {reason.kind for each in forecasts.values() for reason in each.reasons} == {"new", "stage"}
    Path("dvc.lock").write_text(lock)
    assert states(predict()) == dict.fromkeys(STAGES, "runs")
    assert ("output", "data/images", "missing") in reasons(predict()["download"])


@pytest.mark.nightly("two trainings under DVC; make test has a run without a training")
def test_a_run_does_what_was_said(finished_copy: Path) -> None:
    """Other params, a change of code, a new photo, outputs that are lost, and the way back."""
    raw = read_params(finished_copy / "params.yaml")
    source, photo = finished_copy / "pipeline/stages/report.py", finished_copy / "data/inbox/rose/1.png"
    original = source.read_text()
    photo.parent.mkdir()
    Image.new("RGB", (8, 8)).save(photo)
    assert predict()["download"].reasons[0].files == {"data/inbox/rose/1.png": "new"}
    edits: list[Callable[[], object]] = [
        lambda: set_params(finished_copy, split__seed=5, train__lr=0.02, evaluate__onnx=False),
        lambda: set_params(finished_copy, evaluate__batch_size=7),
        lambda: source.write_text(original + "# changed\n"),
        lambda: write_params(finished_copy / "params.yaml", raw),
        lambda: source.write_text(original),
        lambda: files.remove(photo.parent),
        lambda: shutil.rmtree(finished_copy / "models"),
        (finished_copy / "metrics/train.json").unlink,
    ]
    for edit in edits:
        edit()
        before = states(predict())
        assert before
        after = really(finished_copy)
        for stage in STAGES:  # a stage that may run has run, came from the cache, or stayed
            assert before.get(stage, "unchanged") in (after.get(stage, "unchanged"), "maybe"), stage
        assert states(predict()) == {}
