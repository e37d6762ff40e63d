"""The wall of docs/architecture.md: code that serves decides no byte, and a change of it runs nothing again."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import starts
from tests.helpers.projects import call, commit, edited
from tests.helpers.trainings import launch, outputs, small_world

TRAININGS: dict[str, dict[str, Any]] = {
    "elastic": {"train__parallel": "elastic", "train__shards": 4, "train__mixup": 0.2, "run__processes": 2},
    "single": {"train__export": "best", "train__optimizer": "adamw", "train__hash_every_epochs": 1},
}


@pytest.mark.parametrize("training", TRAININGS)
def test_a_training_without_its_serving_code_writes_the_same_bytes(training: str, tmp_path: Path) -> None:
    """The same files come out if launcher, display, checkpoints, provenance, checks and messages do nothing."""
    saved: dict[str, Any] = {"run__epoch_checkpoint_seconds": 0, "run__save_every_epochs": 1, "run__keep_states": 1}
    whole = small_world(tmp_path / "whole", **saved, **TRAININGS[training])
    alone = small_world(tmp_path / "alone", **TRAININGS[training])
    launch(whole)
    done = starts.run([sys.executable, "-m", "tests.ranks.without_serving"], cwd=alone)
    assert done.returncode == 0, done.stderr
    assert outputs(alone) == outputs(whole)
    assert not (alone / "runs").exists()


LATER = (  # of a new version: the words of a refusal, the progress bar, a line of the launcher
    edited("pipeline/running/failures.py", "BatchNorm needs two", "BatchNorm needs at least two"),
    edited("pipeline/running/monitor.py", 'unit="step"', 'unit=" steps"'),
    edited("pipeline/running/launch.py", "launch: restart {restart + 1}", "launch: new start {restart + 1}"),
)


def test_a_new_version_that_decides_nothing_runs_nothing(finished: Path, tmp_path: Path) -> None:
    """After the update, `perennial plan`, `perennial repro` and `dvc repro` leave every stage of the run as it is."""
    project = shutil.copytree(finished, tmp_path / "project", symlinks=True)
    for edit in LATER:
        edit(project)
    commit(project)
    answer = json.loads(call(project, sys.executable, "-m", "pipeline", "plan", "--json").stdout)
    assert {each["state"] for each in answer["stages"]} == {"unchanged"}
    before = (project / "dvc.lock").read_bytes()
    for command in ([sys.executable, "-m", "pipeline", "repro"], ["dvc", "repro"]):
        assert "Running stage" not in call(project, *command).stdout
    assert (project / "dvc.lock").read_bytes() == before
