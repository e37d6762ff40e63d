"""Work copies: the project as it is now, or a commit, with other params. They share DVC's cache with the project."""

import filecmp
import shutil
from pathlib import Path

import pytest

from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.studies import revisions, workcopy
from tests.helpers.projects import call, commit, create_project
from tests.helpers.refusals import refuses

WITH = ("pipeline/loader/__pycache__/one.nbi", "data/pretrained/own.safetensors")  # not in Git, and yet copied


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_project(tmp_path_factory.mktemp("committed") / "project")


@pytest.fixture
def project(committed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project as the working folder."""
    folder = shutil.copytree(committed, tmp_path / 'it is "mine" #1', symlinks=True)
    monkeypatch.chdir(folder)
    return folder


def test_a_copy_has_the_files_and_the_params_but_not_git(project: Path) -> None:
    """Also files that are not committed yet, and no removed ones. The user's photos are read where they are."""
    for name in ("pipeline/new.py", "large.zip", "data/inbox/mine.png", *WITH):
        files.write_text(project / name, "new")
    (project / "pipeline/commands/compare.py").unlink()
    folder = workcopy.FOLDER / "a"
    files.write_text(folder / "stale", "")
    assert workcopy.copy_project(folder, {"train.lr": 0.5}).config.train.lr == 0.5
    for name in ("pipeline/new.py", "data/inbox/mine.png", *WITH):
        assert (folder / name).is_file()
    absent = ("stale", "large.zip", ".git", "pipeline/commands/compare.py")
    assert not any((folder / name).exists() for name in absent)
    assert (folder / "data/inbox").resolve() == project / "data/inbox"
    call(project, "git", "rm", "--quiet", "--cached", "params.yaml")
    with refuses(("params.yaml", "missing")):
        workcopy.copy_project(folder, {})


@pytest.mark.usefixtures("project")
def test_a_copy_of_a_copy_differs_in_its_params_alone() -> None:
    """Its links lead where those of the first copy lead, or to what it reads there. It is that of a training."""
    Path("data/inbox").mkdir(exist_ok=True)
    first, second = workcopy.FOLDER / "first", workcopy.FOLDER / "second"
    workcopy.copy_project(first, {})
    files.write_text(first / "data/packed/shard", "large")
    files.write_text(second / "stale", "")
    assert workcopy.copy_again(first, second, {"train.lr": 0.5}, ["data/packed"]).config.train.lr == 0.5
    for name, origin in (("data/packed", first / "data/packed"), ("data/inbox", Path("data/inbox"))):
        assert ((second / name).is_symlink(), (second / name).samefile(origin)) == (True, True)
    files.remove(first / "data/packed")
    files.remove(second / "data/packed")
    names = [{path.relative_to(copy) for path in copy.rglob("*") if path.is_file()} for copy in (first, second)]
    assert names[0] == names[1]
    differing = [name for name in names[0] if not filecmp.cmp(first / name, second / name)]
    assert [name.name for name in differing if not (first / name).is_symlink()] == ["params.yaml"]


def test_a_copy_of_a_commit_has_the_files_of_that_commit(project: Path) -> None:
    """With other params, and with the cache of the project, whose own files and index stay as they are."""
    first = call(project, "git", "rev-parse", "HEAD").stdout.strip()
    (project / "pipeline/new.py").write_text("NEW = 1\n")
    for name in ("data/inbox", "data/archives"):
        (project / name).mkdir(exist_ok=True)
    commit(project)
    (project / "pipeline/commands/compare.py").unlink()
    status = call(project, "git", "status", "--porcelain").stdout
    one = project.parent / "one"
    assert workcopy.copy_commit(one, first, {"train.lr": 0.5}).config.train.lr == 0.5
    assert not (one / "pipeline/new.py").exists()
    assert (one / "pipeline/commands/compare.py").is_file()
    assert all((one / "data" / name).is_symlink() for name in ("inbox", "archives"))
    cache = call(one, "dvc", "cache", "dir").stdout.strip()
    assert (one / cache).resolve() == project / ".dvc/cache"
    workcopy.copy_commit(Path("two"), "HEAD", {}, user_folders=())
    assert (project / "two/pipeline/new.py").is_file()
    assert not (project / "two/data/inbox").is_symlink()
    files.remove(Path("two"))
    assert call(project, "git", "status", "--porcelain").stdout == status
    for unknown in ("nothing", "--index-output=written"):
        with pytest.raises(UserError):
            workcopy.copy_commit(Path("three"), unknown, {})
    assert not (project / "written").exists()


def test_what_is_copied_replaces_what_is_there(tmp_path: Path) -> None:
    """A link is not followed: what it points to stays. Two copies in a row are the same."""
    project, folder = tmp_path / "project", tmp_path / "folder"
    for path in (project, folder):
        path.mkdir()
    (project / "file").write_text("new")
    (project / "link").symlink_to("file")
    (tmp_path / "mine").write_text("mine")
    (folder / "file").symlink_to(tmp_path / "mine")
    for _ in range(2):
        workcopy.copy_files([Path("file"), Path("link")], project, folder)
    assert (tmp_path / "mine").read_text() == "mine"
    assert (folder / "file").read_text() == (folder / "link").read_text() == "new"
    assert (folder / "link").is_symlink()


def test_a_commit_of_a_subfolder(committed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project that is a part of a repository: a copy has the project's files at its top, and so has a revision."""
    project = shutil.copytree(committed, tmp_path / "repository/inside", symlinks=True)
    shutil.rmtree(project / ".git")
    call(project.parent, "git", "init", "--quiet")
    (project.parent / "beside").touch()
    commit(project.parent)
    monkeypatch.chdir(project)
    workcopy.copy_commit(Path("copy"), "HEAD", {"train.lr": 0.5})
    assert (project / "copy/pipeline/stages/train.py").is_file()
    assert not (project / "copy/beside").exists()
    assert revisions.open_revision("HEAD").cat_file("params.yaml") == (project / "params.yaml").read_bytes()
