"""`perennial verify` in a clone repeats what somebody else has published, and refuses what was tampered with."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.attest import clone
from pipeline.base import files
from pipeline.base.errors import NOT_HERE, Kind, UserError
from pipeline.commands import verify as verify_here
from pipeline.versioning import dvc_lock
from tests.helpers.damage import edited
from tests.helpers.projects import call, commit, verify
from tests.helpers.refusals import refuses

AGAIN = pytest.mark.nightly("Git and DVC for each of them; make test has one of each kind")


@pytest.fixture
def published(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with a finished run, without the outputs: the working folder, to be changed by a test."""
    folder = tmp_path / "published"
    call(finished, "git", "clone", "--quiet", str(finished), str(folder))
    monkeypatch.chdir(folder)
    return folder


def cloned(published: Path) -> Path:
    """A clone of it; TMPDIR for the work copy of `perennial verify` is beside it."""
    (published.parent / "temporary").mkdir()
    call(published.parent, "git", "clone", "--quiet", str(published), "clone")
    return published.parent / "clone"


def test_a_clone_of_a_published_run_can_be_repeated(published: Path) -> None:
    """Nobody needs its outputs, but one stage alone needs its inputs."""
    stage_hashes = dvc_lock.read()
    assert clone.is_here(stage_hashes)
    assert clone.checked()[1] == stage_hashes
    with pytest.raises(UserError) as refused:
        verify_here.verify("train")
    assert ("data/packed", "differs") in [(fault.key, fault.kind) for fault in refused.value.faults]


@pytest.mark.nightly("every stage under DVC; make test-ci repeats the run of a folder, and checks such a clone")
def test_a_published_run_is_repeated_and_stated(published: Path) -> None:
    """The clone gets no outputs."""
    folder = cloned(published)
    done = verify(folder, "--json")
    assert done.returncode == 0, done.stderr
    same = [line.split()[0] for line in done.stderr.splitlines() if line.endswith("  same")]
    assert sorted(same) == sorted(dvc_lock.outputs(dvc_lock.read()))
    stated = json.loads(done.stdout)
    assert [each["name"] for each in stated["subject"]] == ["dvc.lock"]
    assert stated["predicate"]["passedTests"][:2] == ["download", "split"]
    assert call(folder, "git", "status", "--porcelain").stdout == ""
    assert not (folder / "models/model.json").exists()


def without_a_run(project: Path) -> None:
    """A model card that nobody made, a dvc.lock that has its hash, and a stage that DVC does not run."""
    card, lock = project / "models/README.md", project / "dvc.lock"
    files.write_text(card, "made up\n")
    recorded = dvc_lock.read(lock)["card"]["outs"]["models/README.md"]
    lock.write_text(lock.read_text().replace(recorded, files.md5(card)))
    edited("dvc.yaml", "  card:\n", "  card:\n    frozen: true\n")(project)
    call(project, "git", "add", "--force", "models")


@pytest.mark.nightly("every stage under DVC; make test-ci repeats the run of a folder")
def test_an_output_in_the_commit_is_no_result(published: Path) -> None:
    """It is removed before the stages run, so a stage that does not run has none."""
    without_a_run(published)
    commit(published)
    done = verify(cloned(published))
    assert done.returncode == NOT_HERE, done.stdout
    assert "models/README.md" in done.stderr


def compiled(project: Path) -> None:
    """Bytecode that Python would run instead of the reviewed source."""
    folder = project / "pipeline/stages/__pycache__"
    folder.mkdir()
    (folder / "evaluate.cpython-311.pyc").write_bytes(b"")
    call(project, "git", "add", "--force", str(folder))


def linked(project: Path) -> None:
    """A log that is another file of the user."""
    (project / "log.txt").symlink_to("../victim")


def other_figures(project: Path) -> None:
    """A metric in the commit that dvc.lock does not have."""
    path = project / "metrics/eval.json"
    path.write_text(path.read_text().replace("0.", "1.", 1))


def other_folder(project: Path) -> None:
    """Photos of `dvc add` whose list leads out of the folder."""
    listing = b'[{"md5": "d41d8cd98f00b204e9800998ecf8427e", "relpath": "../../../victim"}]'
    md5 = hashlib.md5(listing, usedforsecurity=False).hexdigest()
    files.write_text(project / "data/pretrained/a.dvc", f"outs:\n- md5: {md5}.dir\n  hash: md5\n  path: a\n")
    store = project.parent / "store/files/md5"
    for name, content in ((f"{md5}.dir", listing), ("d41d8cd98f00b204e9800998ecf8427e", b"")):
        (store / name[:2]).mkdir(parents=True, exist_ok=True)
        (store / name[:2] / name[2:]).write_bytes(content)
    (project / ".dvc/config").write_text(
        f"[core]\n    remote = a\n['remote \"a\"']\n    url = {project.parent}/store\n"
    )
    call(project, "git", "add", "--force", "data/pretrained/a.dvc")


def other_cache(project: Path) -> None:
    """A setting of DVC with which it would write elsewhere."""
    other_folder(project)
    with (project / ".dvc/config").open("a") as config:
        config.write("[cache]\n    dir = /tmp/victim\n")


def copying(project: Path) -> None:
    """A stage that copies, with a dvc.lock that says so."""
    for name in ("dvc.yaml", "dvc.lock"):
        edited(name, "exec python -m pipeline evaluate", "cp -r old/. .")(project)


def hiding(project: Path) -> None:
    """A file that hides a library, with what a DVC would answer for which nothing has changed."""
    (project / "dvc.py").write_text("print('{}')\n")


@pytest.mark.parametrize(
    ("tamper", "key", "kind"),
    [
        pytest.param(edited("params.yaml", "lr: 0.01", "lr: 0.02"), "the stage train", "differs", marks=AGAIN),
        (copying, "the stage evaluate", "differs"),
        (edited("params.yaml", "device: cpu", "device: cuda"), "train.device", "machine"),
        (edited("requirements/lock.txt", "torch==", "torch==0"), "requirements/lock.txt", "machine"),
        (compiled, "pipeline/stages/__pycache__/evaluate.cpython-311.pyc", "value"),
        (linked, "log.txt", "value"),
        pytest.param(other_figures, "metrics/eval.json", "differs", marks=AGAIN),
        pytest.param(other_folder, "data/pretrained/a.dvc", "value", marks=AGAIN),
        pytest.param(other_cache, ".dvc/config", "value", marks=AGAIN),
        (hiding, "dvc.py", "value"),
    ],
    ids=["params", "copy", "GPU", "packages", "compiled", "link", "figures", "folder", "cache", "hiding"],
)  # fmt: skip
def test_a_repository_that_cannot_be_checked_is_refused(
    published: Path, tamper: Callable[[Path], None], key: str, kind: Kind
) -> None:
    """Before any of its stages runs. The fault has its key."""
    tamper(published)
    commit(published)
    with pytest.raises(UserError) as refused:
        clone.checked()
    assert (refused.value.faults[0].key, refused.value.faults[0].kind) == (key, kind)


def test_photos_that_no_remote_has_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a remote, `dvc fetch` brings nothing and succeeds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.versioning.programs.dvc", lambda *_, **__: "")
    monkeypatch.setattr("pipeline.versioning.integrity.cache_folder", lambda: tmp_path)
    files.write_text(Path("data/inbox/a.dvc"), "outs:\n- md5: b9f4c1cc743af7b09673ba380390d2f1.dir\n  path: a\n")
    with refuses(("data/inbox/a", "missing")):
        clone.fetch(["data/inbox/a.dvc"])


def test_what_hides_a_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or a package beside the code with the name of a library. Python finds the user's own programs as ever."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("torch.py", "json/__init__.py", "plots.py", "torch/functional.py", "tests/__init__.py", "torch.txt")
    for name in names:
        files.write_text(Path(name), "")
    assert [clone.hidden_library(Path(name)) for name in names] == ["torch", "json", "", "", "", ""]
