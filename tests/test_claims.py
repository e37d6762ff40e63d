"""A training claims the state after each epoch; a checker repeats parts of it, and finds where another one begins."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.attest import repetition, segments
from pipeline.attest.segments import Segment, draw
from pipeline.base import files
from pipeline.base.errors import DIFFERENT
from pipeline.config import params
from pipeline.dataset import packed
from pipeline.learning import chain
from pipeline.running import checkpoint
from pipeline.studies.workcopy import WorkCopy
from pipeline.versioning import children
from tests.conftest import PROJECT
from tests.helpers import starts
from tests.helpers.damage import flip
from tests.helpers.projects import call, commit, create_project, verify
from tests.helpers.refusals import refuses
from tests.helpers.trainings import digests, launch, outputs, small_world

STATE, DIGEST = "state_sha256", "0" * 64
EPOCHS: dict[str, Any] = {"train__epochs": 3}


def states(folder: Path) -> list[str]:
    """The column of states in a history."""
    return [row[STATE] for row in files.read_csv(folder / "metrics/history.csv")]


def test_the_hash_of_a_state_is_that_of_its_values() -> None:
    """Neither the order of keys nor the memory format counts; each value, name, type and shape does."""
    weights = torch.arange(48.0).reshape(1, 3, 4, 4)
    state = {"model": {"a": weights, "b": torch.zeros(())}, "steps": [1, 2.5, None, object()]}
    same = {
        "steps": [1, 2.5, None, object()],
        "model": {"b": torch.zeros(()), "a": weights.to(memory_format=torch.channels_last)},
    }
    assert chain.sha256(state) == chain.sha256(same)
    others = [
        {**state, "steps": [1, 2.5, 0, object()]},
        {**state, "steps": [2, 2.5, None, object()]},
        {**state, "model": {"a": weights, "c": torch.zeros(())}},
        {**state, "model": {"a": weights.double(), "b": torch.zeros(())}},
        {**state, "model": {"a": weights.reshape(3, 1, 4, 4), "b": torch.zeros(())}},
        {**state, "model": {"a": weights.nextafter(weights + 1), "b": torch.zeros(())}},
    ]
    assert len({chain.sha256(each) for each in [state, *others]}) == 7


@pytest.mark.slow("a training more; make test ends one at the first other state")
def test_states_are_hashed_every_so_many_epochs(claimed: Path, tmp_path: Path) -> None:
    """train.hash_every_epochs: after each epoch, after every second, never. The weights are the same for each."""
    folders = [claimed, *(small_world(tmp_path / f"{k}", **EPOCHS, train__hash_every_epochs=k) for k in (2, 0))]
    for folder in folders[1:]:
        launch(folder)
    assert [[len(state) for state in states(folder)] for folder in folders] == [[64, 64, 64], [0, 64, 0], [0, 0, 0]]
    assert len({files.sha256(folder / "models/model.safetensors") for folder in folders}) == 1


def claim(folder: Path, **values: object) -> dict[str, Any]:
    """The variable that names a claim with these values. Its files are in the folder."""
    files.write_json(folder / "claim.json", {"difference": str(folder / "difference.json"), **values})
    return {"PERENNIAL_CLAIM": str(folder / "claim.json")}


@pytest.mark.slow("two trainings; make test ends one at the first other state")
def test_a_training_goes_on_from_a_kept_state(tmp_path: Path) -> None:
    """From the state after an epoch it gives the same outputs, for a training with every kind of state."""
    lines: dict[str, Any] = {
        "train__epochs": 3, "train__optimizer": "adamw", "train__lr": 0.001, "train__ema_decay": 0.9,
        "train__export": "best", "train__precision": "fp16",
    }  # fmt: skip
    whole = small_world(tmp_path / "whole", run__keep_states=2, **lines)
    launch(whole)
    kept = sorted(path.name for path in (whole / "states").iterdir())
    assert kept == ["epoch-0002.pt", "epoch-0003.pt"]  # the last one, too
    rest = small_world(tmp_path / "rest", **lines)
    start = str(whole / "states/epoch-0002.pt")
    launch(rest, **claim(tmp_path, start=start, start_epoch=2, states=dict(enumerate(states(whole), 1))))
    assert outputs(rest) == outputs(whole)


def test_a_training_ends_at_the_first_other_state(claimed: Path, tmp_path: Path) -> None:
    """The epoch is in the file; a start state that is not the claimed one trains nothing."""
    false = dict(enumerate(states(claimed), 1)) | {2: DIGEST}
    again = small_world(tmp_path / "again", **EPOCHS)
    done = launch(again, check=False, **claim(tmp_path, states=false))
    assert (done.returncode, "epoch 1/3" in done.stderr, "epoch 3/3" in done.stderr) == (1, True, False)
    assert json.loads((tmp_path / "difference.json").read_text()) == 2
    start = str(claimed / "states/epoch-0002.pt")
    done = launch(again, check=False, **claim(tmp_path, states=false, start=start, start_epoch=2))
    assert (done.returncode, "epoch 3/3" in done.stderr) == (1, False)


def first_difference(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program of this name in the folder."""
    command = [sys.executable, "-m", "tests.faults.first_difference", *words]
    environ = {**os.environ, "PYTHONPATH": str(PROJECT)}
    return starts.run(command, cwd=folder, env=environ)


@pytest.mark.nightly(
    "each operator of a step is hashed in four trainings, which are really started; make test has states"
)
def test_the_first_other_operator_of_two_trainings_is_named(tmp_path: Path) -> None:
    """First the step with another state; in this step, the operator with other values for equal arguments."""
    for arithmetic in ("native", "portable"):
        folder = small_world(tmp_path / arithmetic, train__arithmetic=arithmetic, train__model="resnet18")
        for steps in ("1", "3"):
            done = first_difference(folder, "record", steps, f"../{arithmetic}-{steps}.json")
            assert done.returncode == 0, done.stderr
        assert not (folder / "runs").exists()
        one, three = (json.loads((tmp_path / f"{arithmetic}-{steps}.json").read_text()) for steps in (1, 3))
        assert one[-1] == three[0]  # what is recorded changes nothing
        assert one[-1] != three[1]
        assert len(one) > 100
    same = first_difference(tmp_path, "compare", "native-3.json", "native-3.json")
    assert (same.returncode, same.stderr) == (0, "")
    step, operator = (
        first_difference(tmp_path, "compare", f"native-{steps}.json", f"portable-{steps}.json") for steps in (3, 1)
    )
    if operator.returncode == 0:
        pytest.skip("this CPU computes the same bits with native and with portable arithmetic")
    assert step.returncode == operator.returncode == 1
    assert re.fullmatch("the state after step [123]: other values\n", step.stderr)
    assert re.fullmatch(r"aten\.\S+: other values\n", operator.stderr)


def test_segments_are_drawn_by_a_seed_and_divided_into_parts() -> None:
    """The same seed draws the same ones; parts have them all, once; every segment can be drawn."""
    kept = list(range(2, 21, 2))
    drawn = draw(kept, 0.3, 7)
    assert drawn == draw(kept, 0.3, 7)
    assert len(drawn) == 3
    assert {*draw(kept, 0.3, 7, 1, 2)} | {*draw(kept, 0.3, 7, 2, 2)} == {*drawn}
    assert not {*draw(kept, 0.3, 7, 1, 2)} & {*draw(kept, 0.3, 7, 2, 2)}
    assert {each for seed in range(100) for each in draw(kept, 0.1, seed)} == {Segment(e - 2, e) for e in kept}


@pytest.fixture(scope="module")
def claimed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of three epochs that has kept each state."""
    folder = small_world(tmp_path_factory.mktemp("claimed") / "project", run__keep_states=1, **EPOCHS)
    launch(folder)
    return folder


@pytest.fixture
def project(claimed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as the working folder. A checker repeats it without Git and DVC, in forked processes."""

    def copy(place: Path, *_: object) -> WorkCopy:
        return WorkCopy(small_world(place, **EPOCHS), params.load())

    def train(_: object, cwd: Path, env: Mapping[str, str]) -> int:
        return launch(cwd, check=False, PERENNIAL_CLAIM=env["PERENNIAL_CLAIM"]).returncode

    folder = shutil.copytree(claimed, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(repetition, "make_copy", copy)
    monkeypatch.setattr(repetition, "variables", lambda _: {})
    monkeypatch.setattr(children, "run", train)
    return folder


def audit(project: Path, share: float, part: tuple[int, int] = (1, 1), processes: int | None = None) -> int:
    """Audit a share of the segments, with the outputs as they are now in dvc.lock."""
    hashes = {name: files.md5(project / name) for name in outputs(project)}
    return segments.audit(params.load(), {"train": {"deps": {}, "outs": hashes}}, share, 3, part, processes)


@pytest.mark.slow("trains in a clone; make test has the segments that are drawn")
def test_an_audit_of_a_true_claim(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two of three segments have the same states; one checker of two repeats one of them."""
    assert audit(project, 0.5) == 0
    said = capsys.readouterr().out
    assert (said.count(": the same states"), "33%" in said) == (2, True)
    assert audit(project, 0.5, part=(2, 2)) == 0
    assert capsys.readouterr().out.count(": the same states") == 1
    with refuses(("--part", "value")):
        audit(project, 0.5, part=(3, 3))
    with refuses(("--processes", "pair")):  # without elastic
        audit(project, 0.5, processes=2)


def edit_history(project: Path, epoch: int, state: str) -> None:
    """Another state of an epoch in the history."""
    path = project / "metrics/history.csv"
    text = path.read_text().replace(states(project)[epoch - 1], state)
    files.remove(path)
    path.write_text(text)


def made_up(project: Path) -> None:
    """A history with states that nobody computed."""
    for epoch in range(1, 4):
        edit_history(project, epoch, f"{epoch}" * 64)


def other_weights(project: Path) -> None:
    """A model with other weights than those of the last state."""
    flip(project / "models/model.safetensors")


def skipped_step(project: Path) -> None:
    """A training that goes on from another state after epoch 1, as if a step had been left out; its claim fits it."""
    path = project / "states/epoch-0001.pt"
    forged = checkpoint.load(path)
    forged["model"]["fc.bias"] += 1
    checkpoint.save(path, forged, keep_previous=False)
    *rows, last = forged["progress"]["history"]
    history = [*rows, {name: value for name, value in last.items() if name != STATE}]
    content = {name: forged[name] for name in ("model", "precision", "optimizer", "ema")}
    edit_history(project, 1, chain.sha256({**content, "progress": {**forged["progress"], "history": history}}))


def swapped_states(project: Path) -> None:
    """The states of two epochs, exchanged: they join nothing."""
    one, two = (project / f"states/epoch-000{epoch}.pt" for epoch in (1, 2))
    one.rename(project / "aside")
    two.rename(one)
    (project / "aside").rename(two)


def swapped_image(project: Path) -> None:
    """A training on other images than those of the commit: two of two classes are exchanged. Its claim fits it."""
    images = np.fromfile(project / "data/packed/images-00000.bin", np.uint8).reshape(-1, 40, 40, 3)
    with files.atomic_folder(project / "data/packed") as packing:
        packed.write(packing, iter(images[[1, 0, *range(2, len(images))]]), len(images), 40)
    for name in ("runs", "states", "models", "metrics"):
        shutil.rmtree(project / name)
    launch(project)


@pytest.mark.slow("five audits with their trainings; make test ends a training at its first other state")
@pytest.mark.parametrize("forge", [made_up, skipped_step, swapped_image, other_weights, swapped_states])
def test_an_audit_of_everything_refuses_a_forged_claim(
    project: Path, forge: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it stays unnoticed if every segment is repeated."""
    forge(project)
    assert audit(project, 1) == DIFFERENT
    assert "verify: differs: " in capsys.readouterr().out


@pytest.mark.nightly("a project under DVC, repeated three times; make test-ci has the audit without DVC")
def test_a_project_is_audited_and_its_first_other_epoch_named(tmp_path: Path) -> None:
    """A statement has what was repeated."""
    (tmp_path / "temporary").mkdir()
    drawn = {"data__source": "synthetic", "data__synthetic": {"count": 60, "size": 40}, "split__phash_distance": 0}
    copies: dict[str, Any] = {"run__checkpoint_copy": str(tmp_path / "copies")}
    project = create_project(tmp_path / "project", **drawn, **EPOCHS, run__keep_states=1, **copies)
    call(project, sys.executable, "-m", "pipeline", "repro")
    commit(project)
    (copies_of_run,) = (tmp_path / "copies").iterdir()
    before = digests(copies_of_run, ".")
    assert "checkpoint.pt" in before
    done = verify(project, "audit", "0.5", "--seed", "3", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["predicate"]["passedTests"] == ["audit 0.5 of train, seed 3, part 1/1"]
    edit_history(project, 2, DIGEST)
    call(project, "dvc", "commit", "--force")
    commit(project)
    done = verify(project, "--stage", "train")
    assert done.returncode == DIFFERENT
    assert "in epoch 2 of 3; the state after epoch 1 is the same" in done.stdout
    assert digests(copies_of_run, ".") == before
