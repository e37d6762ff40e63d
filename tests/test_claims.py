"""A training claims the state after each epoch; a checker repeats parts of it, and finds where another one begins."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.attest.segments import Segment, draw
from pipeline.base import files
from pipeline.base.errors import DIFFERENT
from pipeline.learning import chain
from pipeline.running import checkpoint
from tests.conftest import PROJECT
from tests.helpers import starts
from tests.helpers.projects import call, commit, create_project, verify
from tests.helpers.trainings import digests, launch, outputs, small_world

WHOLE = pytest.mark.slow("repeats trainings of a project under DVC; make test has the states and their comparison")
FURTHER = pytest.mark.nightly("the same with further forgeries; make test-ci has one of them")
STATE, DIGEST = "state_sha256", "0" * 64


def states(folder: Path) -> list[str]:
    """The column of states in a history."""
    return [row[STATE] for row in files.read_csv(folder / "metrics/history.csv")]


def test_the_hash_of_a_state_is_that_of_its_values() -> None:
    """Neither the order of keys nor the memory format counts; each value, name, type and shape does.

    Of an object that is neither a tensor nor a plain value only the type counts.
    """
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


def test_states_are_hashed_every_so_many_epochs(tmp_path: Path) -> None:
    """train.hash_every_epochs: after each epoch, after every second, never. The weights are the same for each."""
    weights = set()
    for every, expected in ((1, [64, 64, 64]), (2, [0, 64, 0]), (0, [0, 0, 0])):
        folder = small_world(tmp_path / str(every), train__epochs=3, train__hash_every_epochs=every)
        launch(folder)
        assert [len(state) for state in states(folder)] == expected
        weights.add(files.sha256(folder / "models/model.safetensors"))
    assert len(weights) == 1


@pytest.mark.nightly("three trainings with real processes; make test has one of each kind")
def test_states_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    """With elastic the whole history is the same for 1, 2 and 3 processes; one goes on from the state of another."""
    histories = set()
    for processes in (1, 2, 3):
        elastic: dict[str, Any] = {"train__parallel": "elastic", "train__shards": 6, "train__batch_size": 12}
        folder = small_world(tmp_path / str(processes), run__processes=processes, run__keep_states=1, **elastic)
        launch(folder)
        histories.add((folder / "metrics/history.csv").read_bytes())
    start = str(tmp_path / "1/states/epoch-0001.pt")
    launch(folder, **claim(tmp_path, start=start, start_epoch=1, states=dict(enumerate(states(folder), 1))))
    histories.add((folder / "metrics/history.csv").read_bytes())
    assert len(histories) == 1


def claim(folder: Path, **values: object) -> dict[str, Any]:
    """The variable that names a claim with these values. Its files are in the folder."""
    files.write_json(folder / "claim.json", {"difference": str(folder / "difference.json"), **values})
    return {"PERENNIAL_CLAIM": str(folder / "claim.json")}


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


def test_a_training_ends_at_the_first_other_state(tmp_path: Path) -> None:
    """The epoch is in the file; a start state that is not the claimed one trains nothing."""
    first = small_world(tmp_path / "first", run__keep_states=1, train__epochs=3)
    launch(first)
    claimed = dict(enumerate(states(first), 1)) | {2: DIGEST}
    again = small_world(tmp_path / "again", train__epochs=3)
    done = launch(again, check=False, **claim(tmp_path, states=claimed))
    assert done.returncode == 1
    assert json.loads((tmp_path / "difference.json").read_text()) == 2
    assert "epoch 1/3" in done.stderr
    assert "epoch 3/3" not in done.stderr
    start = str(first / "states/epoch-0002.pt")
    done = launch(again, check=False, **claim(tmp_path, states=claimed, start=start, start_epoch=2))
    assert done.returncode == 1
    assert "epoch 3/3" not in done.stderr


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
def claimed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished project of three epochs that has kept each state: 20 seconds, a whole pipeline under DVC.

    Its checkpoint is copied, too. Whoever repeats the training takes no copy, makes none, and removes none. A forger
    trains another run, which has its own copies.
    """
    project = tmp_path_factory.mktemp("claimed") / "project"
    drawn = {"data__source": "synthetic", "data__synthetic": {"count": 60, "size": 40}, "split__phash_distance": 0}
    copies = str(project.parent / "copies")
    create_project(project, **drawn, train__epochs=3, run__keep_states=1, run__checkpoint_copy=copies)
    call(project, sys.executable, "-m", "pipeline", "repro")
    commit(project)
    (copies_of_run,) = (project.parent / "copies").iterdir()
    before = digests(copies_of_run, ".")
    assert "checkpoint.pt" in before
    yield project
    assert digests(copies_of_run, ".") == before


@pytest.fixture
def project(claimed: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed by a test; TMPDIR for work copies is beside it."""
    (tmp_path / "temporary").mkdir()
    return shutil.copytree(claimed, tmp_path / "project", symlinks=True)


@WHOLE
def test_an_audit_of_a_true_claim(project: Path) -> None:
    """Two of three segments have the same states; a statement says so."""
    done = verify(project, "audit", "0.5", "--seed", "3", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(": the same states") == 2
    assert "33%" in done.stderr
    stage = verify(project, "--stage", "card", "--json")
    assert stage.returncode == 0, stage.stderr
    tests = [json.loads(each.stdout)["predicate"]["passedTests"] for each in (done, stage)]
    assert tests == [["audit 0.5 of train, seed 3, part 1/1"], ["card"]]
    for option, value in (("--processes", "2"), ("--part", "3/3")):  # without elastic; two are drawn
        refused = verify(project, "audit", "0.5", option, value)
        assert refused.returncode == 1
        assert refused.stderr.startswith(f"verify: {option}: ")


@FURTHER
def test_one_checker_repeats_a_part(project: Path) -> None:
    """Of two segments that are drawn, one."""
    part = verify(project, "audit", "0.5", "--seed", "3", "--part", "2/2")
    assert part.returncode == 0
    assert part.stdout.count(": the same states") == 1


def write_state(project: Path, epoch: int, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the weights of a kept state."""
    path = project / f"states/epoch-{epoch:04}.pt"
    state = checkpoint.load(path)
    change(state["model"])
    checkpoint.save(path, state, keep_previous=False)


def add_to_bias(weights: dict[str, torch.Tensor]) -> None:
    """Another bias of the head."""
    weights["fc.bias"] += 1


def edit_history(project: Path, epoch: int, state: str) -> None:
    """Another state of an epoch in the history, as if DVC had recorded it."""
    path = project / "metrics/history.csv"
    rows = files.read_csv(path)
    text = path.read_text().replace(rows[epoch - 1][STATE], state)
    files.remove(path)
    path.write_text(text)
    record(project)


def record(project: Path) -> None:
    """Record the outputs as they are, and commit."""
    call(project, "dvc", "commit", "--force")
    commit(project)


def made_up(project: Path) -> None:
    """A history with states that nobody computed."""
    for epoch in range(1, 4):
        edit_history(project, epoch, f"{epoch}" * 64)


def other_weights(project: Path) -> None:
    """A model with other weights than those of the last state."""
    path = project / "models/model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    files.remove(path)
    path.write_bytes(content)
    record(project)


def skipped_step(project: Path) -> None:
    """A training that goes on from another state after epoch 1, as if a step had been left out; its claim fits it."""
    write_state(project, 1, add_to_bias)
    forged = checkpoint.load(project / "states/epoch-0001.pt")
    progress = forged["progress"]
    *rows, last = progress["history"]
    last = {name: value for name, value in last.items() if name != STATE}
    content = {name: forged[name] for name in ("model", "precision", "optimizer", "ema")}
    edit_history(project, 1, chain.sha256({**content, "progress": {**progress, "history": [*rows, last]}}))


def exchange(one: Path, two: Path) -> None:
    """Give each of two files the content of the other."""
    contents = [path.read_bytes() for path in (two, one)]
    for path, content in zip((one, two), contents, strict=True):
        files.remove(path)
        path.write_bytes(content)


def swapped_states(project: Path) -> None:
    """The states of two epochs, exchanged: they join nothing."""
    exchange(*(project / f"states/epoch-{epoch:04}.pt" for epoch in (1, 2)))


def swapped_image(project: Path) -> None:
    """A training on other images than those of dvc.lock: two of two classes are exchanged. Its claim fits it."""
    copy = shutil.copytree(project, project.parent / "other", symlinks=True)
    (copy / "dvc.lock").unlink()  # else its stages would refuse the image
    first = {row["class"]: copy / "data/images" / row["path"] for row in files.read_csv(copy / "data/split.csv")}
    exchange(*list(first.values())[:2])
    for stage in ("split", "prepare", "train"):
        call(copy, sys.executable, "-m", "pipeline", stage)
    for name in ("states", "models", "metrics/history.csv", "metrics/train.json"):
        files.remove(project / name)
        (shutil.copytree if (copy / name).is_dir() else shutil.copyfile)(copy / name, project / name)
    record(project)


@WHOLE
@pytest.mark.parametrize(
    "forge",
    [
        made_up,
        *(
            pytest.param(each, marks=FURTHER)
            for each in (skipped_step, swapped_image, other_weights, swapped_states)
        ),
    ],
)  # fmt: skip
def test_an_audit_of_everything_refuses_a_forged_claim(project: Path, forge: Callable[[Path], None]) -> None:
    """Nothing of it stays unnoticed if every segment is repeated."""
    forge(project)
    done = verify(project, "audit", "1", "--seed", "3")
    assert done.returncode == DIFFERENT
    assert "verify: differs: " in done.stdout, done.stderr


@FURTHER
def test_verify_ends_at_the_first_other_epoch(project: Path) -> None:
    """It names the epoch, and does not train on."""
    edit_history(project, 2, DIGEST)
    done = verify(project, "--stage", "train")
    assert done.returncode == DIFFERENT
    assert "in epoch 2 of 3; the state after epoch 1 is the same" in done.stdout
