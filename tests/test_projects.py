"""Many projects from one installation: found upward, made, upgraded, and checked."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.harness import workspace
from pipeline.commands import upgrade
from pipeline.config import document
from pipeline.studies import workcopy
from pipeline.versioning import releases
from tests.conftest import PROJECT, read_params, set_params
from tests.helpers.projects import call, commit

CODE, SETTINGS = "pipeline/commands/params.py", "params.yaml"


def program(installation: Path) -> str:
    """The program of an installation, with this Python instead of an environment of its own."""
    folder = installation / ".venv/bin"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "python").chmod(0o755)
    shutil.copy(PROJECT / "requirements/perennial", folder / "perennial")
    return str(folder / "perennial")


def perennial(installation: Path, cwd: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the program of an installation in a folder, as from a terminal whose user has no name for Git."""
    environ = {**workspace.environment(cwd), **dict.fromkeys(("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"), os.devnull)}
    command = [program(installation), *words]
    return subprocess.run(command, cwd=cwd, env=environ | variables, capture_output=True, text=True, check=False)


def release(installation: Path, version: str, *changes: tuple[str, str, str]) -> None:
    """Change lines of files, and commit and tag this version."""
    for name, old, new in (("CITATION.cff", r"(?m)^version: .*", f"version: {version}"), *changes):
        text = (installation / name).read_text()
        changed = re.sub(old, new, text, count=1)
        assert changed != text, name
        (installation / name).write_text(changed)
    commit(installation)
    call(installation, "git", "tag", f"v{version}")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of Perennial as its files are now, with three released states: v1, v2 and v3."""
    folder = tmp_path_factory.mktemp("installation") / "clone"
    kept = tuple(f"{name}/" if (PROJECT / name).is_dir() else name for name in (*releases.CONTENT, "README.md"))
    names = [name for name in workcopy.project_files(PROJECT) if f"{name}".startswith(kept)]
    workcopy.copy_files(names, PROJECT, folder)
    call(folder, "git", "init", "--quiet")
    release(folder, "1")
    release(folder, "2", (CODE, "Print the params", "Print all params"), (SETTINGS, r"(?m)\A", "# Of version 2.\n"))
    release(folder, "3", (CODE, "Print all params", "Show the params"), ("requirements/lock.txt", r"(?m)\A", "\n"))
    return folder


@pytest.fixture
def installation(clone: Path, tmp_path: Path) -> Path:
    """A copy of that clone, at its first state."""
    call(tmp_path, "git", "clone", "--quiet", str(clone), "installation")
    call(tmp_path / "installation", "git", "reset", "--quiet", "--hard", "v1")
    return tmp_path / "installation"


@pytest.fixture
def roses(installation: Path, tmp_path: Path) -> Path:
    """A project that `perennial new` has made, typed in the clone."""
    done = perennial(installation, installation / "docker", "new", "../../roses")
    assert done.returncode == 0, done.stderr
    return tmp_path / "roses"


def state(folder: Path) -> str:
    """What Git sees of a project: its commits, and what is changed."""
    return call(folder, "git", "rev-parse", "HEAD").stdout + call(folder, "git", "status", "--porcelain").stdout


def version_of(folder: Path) -> str:
    """The version in the record of a project."""
    return str(json.loads((folder / releases.RECORD).read_text())["version"])


def test_a_new_project_has_the_files_of_the_last_commit(installation: Path, roses: Path) -> None:
    """And no other ones, in one commit, which the branch perennial names, too. `check` finds its code unchanged."""
    listed = call(installation, "git", "ls-files", "--", *releases.CONTENT).stdout.split()
    files = call(roses, "git", "ls-files").stdout.split()
    assert sorted(files) == sorted([*listed, "README.md", str(releases.RECORD)])
    assert all((roses / name).read_bytes() == (installation / name).read_bytes() for name in listed)
    assert "# roses" in (roses / "README.md").read_text()
    assert call(roses, "git", "status", "--porcelain").stdout == ""
    (one,) = call(roses, "git", "log", "--all", "--format=%s").stdout.splitlines()
    assert one == "Perennial 1"
    assert call(roses, "git", "rev-parse", "perennial").stdout == call(roses, "git", "rev-parse", "HEAD").stdout
    record = json.loads((roses / releases.RECORD).read_text())
    assert record["commit"] == call(installation, "git", "rev-parse", "HEAD").stdout.strip()
    assert record["tree"] == call(roses, "git", "rev-parse", "HEAD:pipeline").stdout.strip()
    assert perennial(installation, roses, "check").returncode == 0
    for stage in ("weights", "../dvc.yaml:weights"):  # a file is named from where the person stands
        assert perennial(installation, roses / "data", "repro", "--dry", stage).returncode == 0


@pytest.mark.slow("starts the program and Git a dozen times: 6 s; make test has an upgrade without an edit")
def test_a_project_makes_another_one(installation: Path, roses: Path, tmp_path: Path) -> None:
    """It has the release, and none of the changes of the first project: neither its params nor its code."""
    set_params(roses, train__epochs=3)
    (roses / "pipeline/own.py").write_text("")
    commit(roses)
    done = perennial(roses, tmp_path, "new", "tulips", "--photos", "installation/../roses")
    assert done.returncode == 0, done.stderr
    assert f"--photos {roses}\n" in done.stdout
    assert call(tmp_path / "tulips", "git", "rev-parse", "HEAD^{tree}") != call(
        roses, "git", "rev-parse", "HEAD^{tree}"
    )
    assert (tmp_path / "tulips" / SETTINGS).read_bytes() == (installation / SETTINGS).read_bytes()
    assert (tmp_path / "tulips" / releases.RECORD).read_bytes() == (roses / releases.RECORD).read_bytes()
    assert perennial(roses, tmp_path / "tulips", "check").returncode == 0


@pytest.mark.parametrize("what", ["not empty", "a file", "in a project", "photos", "uncommitted"])
def test_no_project_is_made_over_other_files(what: str, installation: Path, tmp_path: Path) -> None:
    """Nor in another project, nor from files that are in no commit. Nothing is changed then, and the cause is named."""
    target = tmp_path / "target"
    words: tuple[str, ...] = ("new", "target")
    named = "target"
    program(installation)
    match what:
        case "not empty":
            (target / "own").mkdir(parents=True)
        case "a file":
            target.write_text("own")
        case "in a project":
            words, named = ("new", "installation/target"), str(installation)
        case "photos":
            words, named = ("new", "target", "--photos", "nothing"), "nothing"
        case "uncommitted":
            set_params(installation, train__epochs=3)
            named = SETTINGS
    before = sorted(tmp_path.rglob("*"))
    done = perennial(installation, tmp_path, *words)
    assert (done.returncode, done.stdout) == (1, "new: make a project with the code of this one, for other photos\n")
    assert named in done.stderr
    assert sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts) == before


def test_a_project_that_could_not_be_finished_is_removed(installation: Path, tmp_path: Path) -> None:
    """The folder is as before: empty if it was there, else gone."""
    call(installation, "git", "rm", "--quiet", "CITATION.cff")
    commit(installation)
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        assert perennial(installation, tmp_path, "new", name).returncode == 1
    assert not [*(tmp_path / "empty").iterdir()]
    assert not (tmp_path / "new").exists()


def test_an_upgrade_keeps_the_params(installation: Path, roses: Path) -> None:
    """Nothing edited, then params edited: each merge has the new files and the project's own changes."""
    done = perennial(installation, roses, "upgrade", "../installation", "v2")
    assert done.returncode == 0, done.stderr
    assert version_of(roses) == "2"
    assert "make setup" not in done.stdout
    assert "# roses" in (roses / "README.md").read_text()
    document.rewrite(roses / SETTINGS, {"train.epochs": 3})
    (roses / "README.md").write_text("Ours.")
    commit(roses)
    done = perennial(installation, roses / "docker", "upgrade", "../../installation", "v3")  # from a folder below
    assert done.returncode == 0, done.stderr
    assert "make setup" in done.stdout
    assert version_of(roses) == "3"
    assert read_params(roses / SETTINGS)["train"]["epochs"] == 3
    assert (roses / SETTINGS).read_text().startswith("# Of version 2.\n")
    assert (roses / "README.md").read_text() == "Ours."
    assert "Show the params" in (roses / CODE).read_text()
    assert perennial(installation, roses, "check").returncode == 0
    assert call(roses, "git", "log", "--first-parent", "--format=%s", "perennial").stdout.split("\n")[:3] == [
        "Perennial 3", "Perennial 2", "Perennial 1",
    ]  # fmt: skip
    before = state(roses)
    assert perennial(installation, roses, "upgrade", "../installation", "v3").returncode == 0
    assert state(roses) == before


@pytest.mark.slow("starts the program and Git a dozen times: 6 s; make test has an upgrade without an edit")
def test_a_conflict_is_named_and_can_be_undone(installation: Path, roses: Path) -> None:
    """The project and the release have changed the same line. `check` has named the file before."""
    changed = (roses / CODE).read_text().replace("Print the params", "Print our params")
    (roses / CODE).write_text(changed)
    done = perennial(installation, roses, "check")
    assert (done.returncode, done.stdout) == (1, f"{CODE}\n")
    commit(roses)
    assert perennial(installation, roses, "check").returncode == 1
    before = state(roses)
    done = perennial(installation, roses, "upgrade", "../installation", "v2")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"upgrade: {CODE}: " in line
    assert upgrade.ABORT in line
    assert "<<<<<<<" in (roses / CODE).read_text()
    assert perennial(installation, roses, "upgrade", "../installation", "v3").returncode == 1  # not in the middle
    call(roses, *upgrade.ABORT.split())
    assert state(roses) == before
    assert version_of(roses) == "1"
    assert perennial(installation, roses, "upgrade", "../installation", "v2").returncode == 1
    (roses / CODE).write_text(changed)  # this side is kept
    commit(roses)
    done = perennial(installation, roses, "upgrade", "../installation", "v3")
    assert done.returncode == 1  # the release has changed the line again
    call(roses, *upgrade.ABORT.split())
    assert version_of(roses) == "2"


@pytest.mark.slow("starts the program and Git a dozen times: 6 s; make test has an upgrade without an edit")
def test_an_upgrade_takes_a_clone_of_the_project_and_an_address(
    installation: Path, roses: Path, tmp_path: Path
) -> None:
    """A colleague's clone has no branch perennial. An address gives the files that the folder gives."""
    call(tmp_path, "git", "clone", "--quiet", str(roses), "colleague")
    call(tmp_path / "colleague", "git", "branch", "--remotes", "--delete", "origin/perennial")
    for folder, source in ((roses, "../installation"), (tmp_path / "colleague", f"file://{installation}")):
        done = perennial(installation, folder, "upgrade", source, "v3")
        assert done.returncode == 0, done.stderr
        assert version_of(folder) == "3"
    trees = [call(each, "git", "rev-parse", "perennial^{tree}").stdout for each in (roses, tmp_path / "colleague")]
    assert trees[0] == trees[1]
    done = perennial(installation, tmp_path / "colleague", "upgrade", f"file://{roses}")
    assert done.returncode == 1
    assert "SOURCE" in done.stderr


@pytest.mark.slow("makes a project for each refusal: 4 s; make test has those of perennial new")
@pytest.mark.parametrize("what", ["dirty", "source", "revision", "no project", "branch", "in the way"])
def test_an_upgrade_that_could_lose_something_is_refused(what: str, installation: Path, roses: Path) -> None:
    """Nothing is changed then, and the cause is named."""
    folder, words, named = roses, ["../installation", "v3"], SETTINGS
    match what:
        case "dirty":  # a file that the release does not change: Git itself would merge
            named = "Makefile"
            (roses / named).write_text("")
        case "source":
            words = ["../installation"]
            set_params(installation, train__epochs=3)
        case "revision":
            words, named = ["../installation", "v9"], "v9"
        case "no project":
            folder, words, named = installation, [".", "v3"], str(releases.RECORD)
        case "branch":
            named = "branch perennial"
            call(roses, "git", "switch", "--quiet", "perennial")
        case "in the way":
            release(installation, "4", ("docs/sweep.yaml", r"\A", "\n"))
            call(installation, "git", "mv", "docs/sweep.yaml", "docker/new.yaml")
            commit(installation)
            words, named = ["../installation", "HEAD"], "docker/new.yaml"
            (roses / "docker/new.yaml").write_text("our own")
    before = state(folder)
    done = perennial(installation, folder, "upgrade", *words)
    assert done.returncode == 1
    assert named in done.stderr
    assert state(folder) == before


def test_check_sees_new_and_removed_files(installation: Path, roses: Path) -> None:
    """Also before they are committed. Compiled files are no code. Git's index stays as it is."""
    (roses / "pipeline/own.py").write_text("")
    (roses / "pipeline/base/text.py").unlink()
    (roses / "pipeline/__pycache__").mkdir(exist_ok=True)
    (roses / "pipeline/__pycache__/own.pyc").write_text("")
    before = state(roses)
    code = "from pipeline.versioning import releases; print(releases.changed_code())"  # that of this project is broken
    environ = {**os.environ, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=roses, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "['pipeline/base/text.py', 'pipeline/own.py']\n"
    assert state(roses) == before
    assert perennial(installation, installation, "check").returncode == 1  # a clone of Perennial is no such project


@pytest.fixture
def modelled(with_onnx: Path, tmp_path: Path) -> Path:
    """The folder of a model of three classes, with a folder of two photos in it."""
    folder = shutil.copytree(with_onnx, tmp_path / "modelled", symlinks=True)
    (folder / "pipeline").symlink_to(PROJECT / "pipeline")
    (folder / "photos/more").mkdir(parents=True)
    for name in ("photos/a.png", "photos/more/b.png"):
        Image.new("RGB", (64, 64), (200, 40, 40)).save(folder / name)
    return folder


def test_a_relative_path_is_from_where_the_person_stands(modelled: Path, tmp_path: Path) -> None:
    """In every folder of the project the paths of the answers are as typed, also through `..` and a link."""
    (modelled / "photos/link").symlink_to(modelled / "photos/more")
    expected = {"a.png": "photos", "../photos/a.png": "photos", "b.png": "photos/more", "link/../a.png": "photos"}
    for given, folder in expected.items():
        done = perennial(tmp_path / "env", modelled / folder, "predict", given, "--csv")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[1].startswith(f"{given},1,")
    done = perennial(tmp_path / "env", modelled / "photos", "predict", ".", str(modelled / "photos/a.png"), "--json")
    answers = [json.loads(line)["path"] for line in done.stdout.splitlines()]
    assert answers == ["a.png", "more/b.png", str(modelled / "photos/a.png")]
    (modelled / "photos/more/own.yaml").write_text("train.lr: wrong")
    for word in ("own.yaml", "nothing.yaml"):
        assert f"photos/more/{word}" in perennial(tmp_path / "env", modelled / "photos/more", "sweep", word).stderr
    done = perennial(tmp_path / "env", modelled / "photos", "new", "roses", "--photos", "~/none")
    assert "--photos: ~/none" in done.stderr
    done = perennial(tmp_path / "env", modelled / "photos", "predict", "a.png", "--heatmap", "more")
    assert "photos/more: it is not empty" in done.stderr


def test_what_needs_no_project_runs_anywhere(modelled: Path, installation: Path, tmp_path: Path) -> None:
    """Help, version, and a model that is named. Anything else is refused: there is no project here, and none above."""
    shutil.copytree(modelled / "models", tmp_path / "some/models", symlinks=True)
    shutil.copy(modelled / "photos/a.png", tmp_path / "some")
    (tmp_path / "some/json.py").write_text("raise SystemExit('a file of this folder is no module of the program')")
    for words in (["--help"], ["--version"], [], ["plan", "--help"], ["predict", "--model", "models", "a.png"]):
        done = perennial(installation, tmp_path / "some", *words)
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("a.png: ")
    for words in (["plan"], ["predict", "a.png"], ["repro"], ["check"], ["upgrade", "."]):
        done = perennial(installation, tmp_path / "some", *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert "perennial new FOLDER" in done.stderr


def test_a_project_of_another_user_is_not_run_from_below(tmp_path: Path) -> None:
    """Whoever may write to a folder above could run code as this user. In the project's folder itself it runs."""
    if os.getuid():
        pytest.skip("a file of another user: only root makes one")
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline/__main__.py").write_text("print('ran')")
    (tmp_path / "below").mkdir()
    assert perennial(tmp_path / "env", tmp_path / "below").stdout == "ran\n"
    os.chown(tmp_path, 65534, 65534)
    assert perennial(tmp_path / "env", tmp_path).stdout == "ran\n"
    done = perennial(tmp_path / "env", tmp_path / "below")
    assert (done.returncode, done.stdout) == (2, "")
    assert str(tmp_path) in done.stderr
