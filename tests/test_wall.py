"""The wall of docs/architecture.md: a change of code that serves runs nothing again (its bytes: test_resume.py)."""

import json
import shutil
import sys
from pathlib import Path

from tests.helpers.damage import edited
from tests.helpers.projects import call, commit

LATER = (  # of a new version: the words of a refusal, the progress bar, a line of the launcher
    edited("pipeline/running/failures.py", "BatchNorm needs two", "BatchNorm needs at least two"),
    edited("pipeline/running/monitor.py", 'unit="step"', 'unit=" steps"'),
    edited("pipeline/running/launch.py", "launch: restart {restart + 1}", "launch: new start {restart + 1}"),
)


def test_a_new_version_that_decides_nothing_runs_nothing(finished: Path, tmp_path: Path) -> None:
    """After the update, `perennial plan` and `perennial repro` leave every stage of the run as it is."""
    project = shutil.copytree(finished, tmp_path / "project", symlinks=True)
    for edit in LATER:
        edit(project)
    commit(project)
    answer = json.loads(call(project, sys.executable, "-m", "pipeline", "plan", "--json").stdout)
    assert {each["state"] for each in answer["stages"]} == {"unchanged"}
    before = (project / "dvc.lock").read_bytes()
    assert "Running stage" not in call(project, sys.executable, "-m", "pipeline", "repro", "--verbose").stdout
    assert (project / "dvc.lock").read_bytes() == before
