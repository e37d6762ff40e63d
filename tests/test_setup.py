"""`make setup` empties only an environment that it made itself, and Git ignores links as it ignores folders."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The Makefile, and a lock without packages."""
    folder = tmp_path / "project"
    (folder / "requirements").mkdir(parents=True)
    (folder / "requirements/lock.txt").touch()
    shutil.copy(PROJECT / "Makefile", folder)
    return folder


def setup(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `make setup`, as from a terminal without an environment."""
    python = f"PYTHON={Path(sys.executable).resolve()}"
    environ = {key: value for key, value in os.environ.items() if key not in {"MAKEFLAGS", "MAKELEVEL", "PYTHONPATH"}}
    command = ["make", "--always-make", "setup", python]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_the_environment_behind_a_link_is_not_emptied(project: Path, tmp_path: Path) -> None:
    """It is somebody else's, even if it was made by `make setup` there."""
    other = tmp_path / "other"
    other.mkdir()
    (other / ".ready").touch()
    (project / ".venv").symlink_to(other)
    refused = setup(project)
    assert refused.returncode != 0
    assert f"setup: .venv is a link to {other}; " in refused.stderr
    assert [path.name for path in other.iterdir()] == [".ready"]


def test_an_environment_that_make_setup_did_not_make_is_not_emptied(project: Path) -> None:
    """Another tool's environment stays, and the refusal names the remedy."""
    (project / ".venv").mkdir()
    (project / ".venv/pyvenv.cfg").write_text("prompt = other\n")
    refused = setup(project)
    assert refused.returncode != 0
    assert "rm -r .venv" in refused.stderr
    assert [path.name for path in (project / ".venv").iterdir()] == ["pyvenv.cfg"]


@pytest.mark.slow("venv installs pip three times: 15 s")
def test_an_environment_of_make_setup_is_made_again(project: Path) -> None:
    """After an interruption, and after a new lock. What was in it is gone."""
    (project / "pipeline/base").mkdir(parents=True)
    (project / "pipeline/versioning/plots_page.py").touch()
    for interrupted in (False, False, True):
        if interrupted:
            (project / ".venv/.ready").unlink()
        done = setup(project)
        assert done.returncode == 0, done.stderr
        assert not (project / ".venv/of an earlier lock").exists()
        (project / ".venv/of an earlier lock").touch()


def test_git_ignores_a_link_in_place_of_a_folder(tmp_path: Path) -> None:
    """Whoever links .venv, runs or data to another disk does not commit the link with `git add --all`."""
    lines = (PROJECT / ".gitignore").read_text().splitlines()
    names = [line[1:] for line in lines if line.startswith("/") and "*" not in line]
    assert {".venv", "runs", "data/images"} <= {*names}
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    shutil.copy(PROJECT / ".gitignore", tmp_path)
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(tmp_path)
    status = ["git", "status", "--porcelain", "--untracked-files=all"]
    listed = subprocess.run(status, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert listed == "?? .gitignore\n"
