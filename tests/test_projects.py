"""Many projects from one installation: found upward, made, upgraded, and checked."""

import json
import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.harness import workspace
from pipeline.base.errors import Kind, UserError
from pipeline.commands import check, new, upgrade
from pipeline.config import document
from pipeline.studies import workcopy
from pipeline.versioning import releases
from tests.conftest import PROJECT, read_params, set_params
from tests.helpers.projects import call, commit
from tests.helpers.refusals import refuses

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
    for name, old, text in (("CITATION.cff", r"(?m)^version: .*", f"version: {version}"), *changes):
        before = (installation / name).read_text()
        after = re.sub(old, text, before, count=1)
        assert after != before, name
        (installation / name).write_text(after)
    commit(installation)
    call(installation, "git", "tag", f"v{version}")


def upgrade_here(project: Path, *words: str) -> int:
    """`perennial upgrade SOURCE [REVISION]` in a project, in this process."""
    source, revision, *_ = (*words, "")
    with chdir(project):
        return upgrade.main(Namespace(source=source, revision=revision, below=""))


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


@pytest.fixture(scope="module")
def made(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of that clone at its first state, and the project `roses` that was made in the clone."""
    folder = tmp_path_factory.mktemp("made")
    call(folder, "git", "clone", "--quiet", str(clone), "installation")
    call(folder / "installation", "git", "reset", "--quiet", "--hard", "v1")
    done = perennial(folder / "installation", folder / "installation/docker", "new", "../../roses")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def installation(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the clone. The user has no name for Git, also in this process."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setattr(new, "INSTALLATION", tmp_path / "installation")
    return shutil.copytree(made / "installation", tmp_path / "installation", symlinks=True)


@pytest.fixture
def roses(made: Path, tmp_path: Path) -> Path:
    """A copy of the project."""
    return shutil.copytree(made / "roses", tmp_path / "roses", symlinks=True)


def state(folder: Path) -> str:
    """What Git sees of a project: its commits, and what is changed."""
    return call(folder, "git", "rev-parse", "HEAD").stdout + call(folder, "git", "status", "--porcelain").stdout


def version_of(folder: Path) -> str:
    """The version in the record of a project."""
    return releases.read(folder).version


def test_a_new_project_has_the_files_of_the_last_commit(installation: Path, roses: Path) -> None:
    """And no other ones, in one commit, which the branch perennial names, too. `check` finds its code unchanged."""
    listed = call(installation, "git", "ls-files", "--", *releases.CONTENT).stdout.split()
    files = call(roses, "git", "ls-files").stdout.split()
    assert sorted(files) == sorted([*listed, "README.md", str(releases.RECORD)])
    assert all((roses / name).read_bytes() == (installation / name).read_bytes() for name in listed)
    assert "# roses" in (roses / "README.md").read_text()
    assert call(roses, "git", "status", "--porcelain").stdout == ""
    head, branch, tree, release = (
        call(folder, "git", "rev-parse", name).stdout.strip()
        for folder, name in ((roses, "HEAD"), (roses, "perennial"), (roses, "HEAD:pipeline"), (installation, "HEAD"))
    )
    assert (branch, releases.read(roses)) == (head, releases.Release("1", release, tree))
    assert call(roses, "git", "log", "--all", "--format=%s").stdout == f"Perennial 1 ({release[:10]})\n"
    assert perennial(installation, roses, "check").returncode == 0
    done = perennial(installation, roses / "data", "repro", "--dry", "../dvc.yaml:weights")  # from where one stands
    assert done.returncode == 0, done.stderr


def test_a_project_makes_another_one(
    installation: Path, roses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the release, and none of the changes of the first project. What cannot be finished is removed."""
    set_params(roses, train__epochs=3)
    (roses / "pipeline/own.py").write_text("")
    commit(roses)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(new, "INSTALLATION", roses)
    assert new.main(Namespace(folder="tulips")) == 0
    for name, origin in ((SETTINGS, installation), (releases.RECORD, roses)):
        assert Path("tulips", name).read_bytes() == (origin / name).read_bytes()
    with chdir("tulips"):
        assert releases.changed_code() == []
    monkeypatch.setattr(new, "INSTALLATION", installation)
    call(installation, "git", "rm", "--quiet", "CITATION.cff")
    commit(installation)
    Path("empty").mkdir()
    for name in ("empty", "new"):
        with pytest.raises(UserError):
            new.create(Path(name))
    assert (Path("empty").exists(), [*Path("empty").iterdir()], Path("new").exists()) == (True, [], False)


def test_no_project_is_made_over_other_files(installation: Path, tmp_path: Path) -> None:
    """Nor in another project, nor from files that are in no commit. Nothing is changed then."""
    cases: list[tuple[Callable[[], object], str, tuple[str, Kind]]] = [
        (lambda: Path("target/own").mkdir(parents=True), "target", ("FOLDER", "value")),
        (lambda: Path("file").write_text("own"), "file", ("FOLDER", "value")),
        (lambda: None, "installation/inside", ("FOLDER", "value")),
        (lambda: None, "caf\udce9", ("FOLDER", "value")),
        (lambda: set_params(installation, train__epochs=3), "new", (str(installation), "differs")),
    ]
    for arrange, folder, fault in cases:
        with chdir(tmp_path):
            arrange()
            before = sorted(tmp_path.rglob("*"))
            with refuses(fault):
                new.main(Namespace(folder=folder))
        assert sorted(tmp_path.rglob("*")) == before


def test_an_upgrade_keeps_the_params(installation: Path, roses: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing edited, then params edited: each merge has the new files and the project's own changes."""
    assert upgrade_here(roses, "../installation", "v2") == 0
    assert "make setup" not in capsys.readouterr().out
    document.rewrite(roses / SETTINGS, {"train.epochs": 3})
    (roses / "README.md").write_text("Ours.")
    commit(roses)
    done = perennial(installation, roses / "docker", "upgrade", "../../installation", "v3")  # from a folder below
    assert (done.returncode, "make setup" in done.stdout) == (0, True), done.stderr
    assert version_of(roses) == "3"
    assert read_params(roses / SETTINGS)["train"]["epochs"] == 3
    texts = ((SETTINGS, "# Of version 2.\n"), ("README.md", "Ours."), (CODE, "Show the params"))
    assert all(text in (roses / name).read_text() for name, text in texts)
    history = call(roses, "git", "log", "--first-parent", "--format=%s", "perennial").stdout
    commits = [call(installation, "git", "rev-parse", tag).stdout[:10] for tag in ("v3", "v2", "v1")]
    assert history.splitlines() == [f"Perennial {3 - k} ({commit})" for k, commit in enumerate(commits)]
    before = state(roses)
    assert upgrade_here(roses, "../installation", "v3") == 0
    assert state(roses) == before


def test_a_conflict_is_named_and_can_be_undone(
    installation: Path, roses: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The project and the release have changed the same line. `check` has named the file before."""
    changed = (roses / CODE).read_text().replace("Print the params", "Print our params")
    (roses / CODE).write_text(changed)
    with chdir(roses):
        assert check.main(Namespace()) == 1
    assert capsys.readouterr().out == f"{CODE}\n"
    commit(roses)
    before = state(roses)
    with refuses((CODE, "differs")) as refused:
        upgrade_here(roses, "../installation", "v2")
    assert upgrade.ABORT in refused.value.faults[0].remedy
    assert "<<<<<<<" in (roses / CODE).read_text()
    with refuses(("Git", "differs")):  # not in the middle
        upgrade_here(roses, "../installation", "v3")
    call(roses, *upgrade.ABORT.split())
    assert (state(roses), version_of(roses)) == (before, "1")
    with refuses((CODE, "differs")):
        upgrade_here(roses, "../installation", "v2")
    (roses / CODE).write_text(changed)  # this side is kept
    commit(roses)
    with refuses((CODE, "differs")):  # the release has changed the line again
        upgrade_here(roses, "../installation", "v3")
    call(roses, *upgrade.ABORT.split())
    assert version_of(roses) == "2"


@pytest.mark.usefixtures("installation")
def test_an_upgrade_takes_a_clone_of_the_project(roses: Path, tmp_path: Path) -> None:
    """A colleague's clone has no branch perennial. An address is refused: no folder."""
    colleague = tmp_path / "colleague"
    call(tmp_path, "git", "clone", "--quiet", str(roses), "colleague")
    call(colleague, "git", "branch", "--remotes", "--delete", "origin/perennial")
    for folder in (roses, colleague):
        assert upgrade_here(folder, "../installation", "v3") == 0
        assert version_of(folder) == "3"
    trees = [call(each, "git", "rev-parse", "perennial^{tree}").stdout for each in (roses, colleague)]
    assert trees[0] == trees[1]
    with refuses(("SOURCE", "missing")):
        upgrade_here(colleague, f"file://{roses}")
    with pytest.raises(UserError, match=": fatal: "):  # what Git says, not its hint in the last line
        releases.git("fetch", f"file://{tmp_path}/nowhere", cwd=roses)


def in_the_way(roses: Path, installation: Path) -> None:
    """A file of the user where the next release has one, too."""
    release(installation, "4", ("docs/sweep.yaml", r"\A", "\n"))
    call(installation, "git", "mv", "docs/sweep.yaml", "docker/new.yaml")
    commit(installation)
    (roses / "docker/new.yaml").write_text("our own")


@pytest.mark.parametrize(
    ("arrange", "revision", "key", "named"),
    [  # Makefile: the release does not change it, so Git itself would merge
        (lambda roses, _: (roses / "Makefile").write_text(""), "v3", "Git", "Makefile"),
        (lambda _, installation: set_params(installation, train__epochs=3), "", "../installation", SETTINGS),
        (lambda *_: None, "v9", "../installation", "v9"),
        (lambda roses, _: call(roses, "git", "switch", "-q", "perennial"), "v3", "Git", "branch perennial"),
        (in_the_way, "HEAD", "git merge", "docker/new.yaml"),
    ],
    ids=["dirty", "source", "revision", "branch", "in the way"],
)
def test_an_upgrade_that_could_lose_something_is_refused(
    arrange: Callable[[Path, Path], object], revision: str, key: str, named: str, installation: Path, roses: Path
) -> None:
    """Nothing is changed then, and the cause is named."""
    arrange(roses, installation)
    before = state(roses)
    with pytest.raises(UserError) as refused:
        upgrade_here(roses, "../installation", revision)
    assert (refused.value.faults[0].key, named in str(refused.value)) == (key, True)
    assert state(roses) == before


def test_check_sees_new_and_removed_files(installation: Path, roses: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before they are committed. Compiled files are no code. Git's index stays as it is."""
    (roses / "pipeline/own.py").write_text("")
    (roses / "pipeline/base/text.py").unlink()
    (roses / "pipeline/__pycache__").mkdir(exist_ok=True)
    (roses / "pipeline/__pycache__/own.pyc").write_text("")
    before = state(roses)
    monkeypatch.chdir(roses)
    assert releases.changed_code() == ["pipeline/base/text.py", "pipeline/own.py"]
    assert state(roses) == before
    monkeypatch.chdir(installation)
    with refuses((releases.RECORD, "missing")):  # a clone of Perennial is no such project
        releases.changed_code()


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
    typed = ("a.png", "../photos/a.png", "link/../a.png", "more", str(modelled / "photos/a.png"))
    done = perennial(tmp_path / "env", modelled / "photos", "predict", *typed, "--json")
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line)["path"] for line in done.stdout.splitlines()]
    assert answers == [*typed[:3], "more/b.png", typed[-1]]
    for words, said in (
        (("sweep", "nothing.yaml"), "photos/more/nothing.yaml"),
        (("start", "quick", "--photos", "~/none"), "--photos: ~/none"),
        (("predict", "b.png", "--heatmap", "."), "photos/more: it is not empty"),
    ):
        assert said in perennial(tmp_path / "env", modelled / "photos/more", *words).stderr


def test_what_needs_no_project_runs_anywhere(modelled: Path, installation: Path, tmp_path: Path) -> None:
    """Help, and a model that is named. Anything else is refused: there is no project here, and none above."""
    shutil.copytree(modelled / "models", tmp_path / "some/models", symlinks=True)
    shutil.copy(modelled / "photos/a.png", tmp_path / "some")
    (tmp_path / "some/json.py").write_text("raise SystemExit('a file of this folder is no module of the program')")
    for words in ([], ["plan", "--help"], ["predict", "--model", "models", "a.png"]):
        done = perennial(installation, tmp_path / "some", *words)
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("a.png: ")
    for words in (["plan"], ["predict", "a.png"]):
        done = perennial(installation, tmp_path / "some", *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert "perennial new FOLDER" in done.stderr


def test_the_program_runs_the_project_in_which_a_person_stands(tmp_path: Path) -> None:
    """With its words and its exit status, also by a link. Elsewhere it is refused. So is a project of another user from
    below: whoever may write to a folder above could run code as this user.
    """
    (tmp_path / "below").mkdir()
    assert perennial(tmp_path / "env", tmp_path).returncode == 2
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline/__main__.py").write_text("import sys; print(*sys.argv[1:]); sys.exit(75)")
    (tmp_path / "linked").symlink_to(program(tmp_path / "env"))
    environ = workspace.environment(tmp_path)
    for path, folder in ((program(tmp_path / "env"), "below"), ("linked", "")):
        command = [str(tmp_path / path), "a", "b c"]
        done = subprocess.run(command, cwd=tmp_path / folder, env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (75, "a b c\n"), done.stderr
    if os.getuid():
        pytest.skip("a file of another user: only root makes one")
    os.chown(tmp_path, 65534, 65534)
    assert perennial(tmp_path / "env", tmp_path).returncode == 75
    done = perennial(tmp_path / "env", tmp_path / "below")
    assert (done.returncode, done.stdout, str(tmp_path) in done.stderr) == (2, "", True)
