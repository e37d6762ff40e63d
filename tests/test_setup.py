"""`make setup` empties only its own environment, and checks hashes; uv and pip refuse; Git ignores links as folders."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.helpers.wheels import wheel


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What installs the environment, and locks without packages."""
    folder = tmp_path / "project"
    shutil.copytree(PROJECT / "requirements", folder / "requirements")
    for lock in ("lock.txt", "test.txt"):
        (folder / "requirements" / lock).write_text("")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(PROJECT / name, folder)
    (folder / "tests").mkdir()
    return folder


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command's end, as from a terminal without an environment."""
    outer = {"MAKEFLAGS", "MAKELEVEL", "PYTHONPATH", "VIRTUAL_ENV"}
    environ = {key: value for key, value in os.environ.items() if key not in outer} | variables
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def setup(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `make setup`. The locks have no package that could be imported."""
    python = Path(sys.executable).resolve()
    return run(folder, "make", "--always-make", "setup", f"PYTHON={python}", "IMPORTED=sys", **variables)


UV = (str(Path(sys.executable).parent / "uv"), "--offline", "--no-cache")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


@pytest.mark.parametrize("command", [(*UV, "run", "perennial"), (*PIP, "wheel", "--no-deps", ".")], ids=["uv", "pip"])
def test_what_would_choose_other_versions_is_refused_with_the_remedy(project: Path, command: tuple[str, ...]) -> None:
    """Nothing is resolved, and no package is installed. pip builds a wheel here, as it does before it installs."""
    done = run(project, *command)
    assert done.returncode != 0
    assert "make setup" in done.stderr + done.stdout
    assert not (project / "uv.lock").exists()
    assert not [*project.rglob("*.dist-info"), *project.rglob("*.whl")]


def test_an_environment_that_make_setup_did_not_make_is_not_emptied(project: Path, tmp_path: Path) -> None:
    """Another tool's environment, and one behind a link, also if `make setup` made it there. The remedy is named."""
    (project / ".venv").mkdir()
    (project / ".venv/pyvenv.cfg").write_text("prompt = other\n")
    done = setup(project)
    assert (done.returncode, "rm -r .venv" in done.stderr) == (2, True), done.stderr
    other = (project / ".venv").rename(tmp_path / "other")
    (other / ".ready").touch()
    (project / ".venv").symlink_to(other)
    done = setup(project)
    assert (done.returncode, f"setup: .venv is a link to {other}; " in done.stderr) == (2, True), done.stderr
    assert sorted(path.name for path in other.iterdir()) == [".ready", "pyvenv.cfg"]


@pytest.mark.nightly("venv installs pip three times: 15 s; make test has the refusals")
def test_an_environment_of_make_setup_is_made_again(project: Path) -> None:
    """After an interruption, after a new lock, and after uv, which leaves an empty one. What was in it is gone."""
    run(project, *UV, "sync")
    assert (project / ".venv").is_dir()
    for interrupted in (False, False, True):
        if interrupted:
            (project / ".venv/.ready").unlink()
        done = setup(project)
        assert done.returncode == 0, done.stderr
        assert not (project / ".venv/of an earlier lock").exists()
        (project / ".venv/of an earlier lock").touch()
    assert os.access(project / ".venv/bin/perennial", os.X_OK)
    done = run(project, "make", ".venv/.ready-tests")
    assert done.returncode == 0, done.stderr
    assert (project / ".venv/.ready-tests").is_file()


@pytest.mark.nightly("venv installs pip: 5 s; the image's test installs by the same locks")
def test_a_package_with_another_hash_is_not_installed(project: Path, tmp_path: Path) -> None:
    """Nor one without a hash; the environment is not ready then. With the hash of the file, it is: from a folder."""
    (project / "pipeline/reporting").mkdir(parents=True)
    (project / "pipeline/reporting/plots_page.py").touch()
    own = wheel(tmp_path / "wheels", "some_package")
    own_hash = hashlib.sha256(own.read_bytes()).hexdigest()
    offline = {"UV_OFFLINE": "1", "UV_FIND_LINKS": str(own.parent), "UV_CACHE_DIR": str(tmp_path / "cache")}
    for hashes, status in (("", 2), (f"--hash=sha256:{'0' * 64}", 2), (f"--hash=sha256:{own_hash}", 0)):
        (project / "requirements/lock.txt").write_text(f"some-package==1 {hashes}\n")
        done = setup(project, **offline)
        assert done.returncode == status, done.stderr
        assert (project / ".venv/.ready").exists() == (status == 0)
        assert bool([*project.glob(".venv/lib/*/site-packages/some_package")]) == (status == 0)


def test_git_ignores_a_link_in_place_of_a_folder(tmp_path: Path) -> None:
    """Whoever links such a folder to another disk does not commit the link."""
    shutil.copyfile(PROJECT / ".gitignore", tmp_path / ".gitignore")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "data").mkdir()
    names = [".venv", "runs", "data/images", "data/other"]
    for name in names:
        (tmp_path / name).symlink_to(tmp_path)
    ignored = subprocess.check_output(["git", "check-ignore", *names], cwd=tmp_path, text=True)
    assert ignored.splitlines() == names[:3]


def test_a_project_without_tests_installs_nothing_for_them(project: Path) -> None:
    """`make test` and `make lint` are of the repository. Elsewhere they end before a package is installed."""
    (project / "tests").rmdir()
    (project / ".venv/bin").mkdir(parents=True)
    (project / ".venv/.ready").touch()
    for target in ("test", "lint"):
        done = run(project, "make", target)
        assert done.returncode == 2
        assert "no tests here" in done.stderr
    assert sorted(path.name for path in (project / ".venv").iterdir()) == [".ready", "bin"]
