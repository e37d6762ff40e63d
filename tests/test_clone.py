"""`perennial verify --from` repeats what somebody else has published, and refuses what was tampered with."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.base import files
from pipeline.base.errors import DIFFERENT, NOT_HERE
from pipeline.config.machine import PROJECT
from pipeline.config.params import Params
from pipeline.reruns import clone, container
from pipeline.reruns.runner import Job
from pipeline.versioning import dvc_lock
from tests.helpers.projects import call, commit, edited, verify

AGAIN = pytest.mark.slow("Git and DVC for each of them; make test has one of each exit status")
REPEATS = pytest.mark.slow("every stage under DVC; make test refuses what is refused before a stage runs")


@pytest.fixture
def published(finished: Path, tmp_path: Path) -> Path:
    """A repository with a finished run, without the outputs: what somebody else can clone, to be changed by a test."""
    folder = tmp_path / "published"
    call(finished, "git", "clone", "--quiet", str(finished), str(folder))
    return folder


@pytest.fixture
def checker(finished: Path, tmp_path: Path) -> Path:
    """Somebody's own project, in which `perennial verify --from` is called."""
    (tmp_path / "temporary").mkdir()
    call(finished, "git", "clone", "--quiet", str(finished), str(tmp_path / "checker"))
    return tmp_path / "checker"


@REPEATS
def test_a_published_run_is_repeated_and_signed(published: Path, checker: Path) -> None:
    """Nobody needs its outputs. Its code is compared with this project's. The clone is removed."""
    call(checker, "openssl", "genpkey", "-algorithm", "ed25519", "-out", "../key.pem")
    call(checker, "openssl", "pkey", "-in", "../key.pem", "-pubout", "-out", "../key.pub")
    done = verify(checker, f"--from={published}", "--sign", "../key.pem")
    assert done.returncode == 0, done.stderr
    assert "its code is that of this project here" in done.stdout
    outs = [out for hashes in dvc_lock.read(published / dvc_lock.LOCK).values() for out in hashes["outs"]]
    lines = done.stdout.splitlines()
    assert all(any(line.startswith(f"{out} ") and line.endswith("  same") for line in lines) for out in outs)
    stated = verify(checker, "--statement", "claims.jsonl", "--key", "../key.pub")
    assert stated.returncode == 0, stated.stderr
    assert "PASSED: download; split; " in stated.stdout


def other_hash(project: Path) -> None:
    """A hash in dvc.lock that no run wrote."""
    lock = project / "dvc.lock"
    expected = dvc_lock.read(lock)["train"]["outs"]["models/model.json"]
    lock.write_text(lock.read_text().replace(expected, expected[::-1]))


@pytest.mark.nightly("every stage under DVC, twice; make test-ci has a true claim, and a false one of verify")
def test_a_false_claim_differs(published: Path, checker: Path) -> None:
    """Although its code is this project's."""
    other_hash(published)
    commit(published)
    done = verify(checker, f"--from={published}")
    assert done.returncode == DIFFERENT, done.stderr
    assert "verify: differs: models/model.json" in done.stdout


def without_a_run(project: Path) -> None:
    """A model card that nobody made, a dvc.lock that has its hash, and a stage that DVC does not run."""
    card, lock = project / "models/README.md", project / "dvc.lock"
    files.write_text(card, "made up\n")
    recorded = dvc_lock.read(lock)["card"]["outs"]["models/README.md"]
    lock.write_text(lock.read_text().replace(recorded, files.md5(card)))
    edited("dvc.yaml", "  card:\n", "  card:\n    frozen: true\n")(project)
    call(project, "git", "add", "--force", "models")


@pytest.mark.nightly("every stage under DVC; make test-ci repeats a claim")
def test_an_output_in_the_commit_is_no_result(published: Path, checker: Path) -> None:
    """It is removed before the stages run, so a stage that does not run has none."""
    without_a_run(published)
    commit(published)
    done = verify(checker, f"--from={published}")
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
        edited(name, "exec setpriv --pdeathsig TERM python -m pipeline evaluate", "cp -r old/. .")(project)


def outside(project: Path) -> None:
    """An output outside the folder."""
    lock = project / "dvc.lock"
    lock.write_text(lock.read_text().replace("- path: models/model.json", "- path: ../models/model.json", 1))


def cut(project: Path) -> None:
    """Half a dvc.lock, which ends within a key: at the end of a line, half of it would be a whole YAML file."""
    lock = project / "dvc.lock"
    text = lock.read_text()
    lock.write_text(text[: text.index("path: ", len(text) // 2) + len("pa")])


@pytest.mark.parametrize(
    ("tamper", "key", "status"),
    [
        (edited("pipeline/training/schedule.py", "math.cos(", "1.0 * math.cos("), "the stage train", 1),
        pytest.param(edited("params.yaml", "lr: 0.01", "lr: 0.02"), "the stage train", 1, marks=AGAIN),
        pytest.param(edited("docker/pins.env", "APEX_COMMIT=", "APEX_COMMIT=0"), "the stage train", 1, marks=AGAIN),
        pytest.param(
            edited("dvc.yaml", "python -m pipeline evaluate", "python -B -m pipeline evaluate"),
            "the stage evaluate",
            1,
            marks=AGAIN,
        ),
        pytest.param(copying, "the stage evaluate", 1, marks=AGAIN),
        pytest.param(outside, "dvc.lock", 1, marks=AGAIN),
        pytest.param(cut, "dvc.lock", 1, marks=AGAIN),
        pytest.param(
            lambda project: (project / "pipeline/__main__.py").unlink(), "pipeline/__main__.py", 1, marks=AGAIN
        ),
        pytest.param(edited("params.yaml", "device: cpu", "device: cuda"), "train.device", NOT_HERE, marks=AGAIN),
        (edited("requirements/lock.txt", "torch==", "torch==0"), "requirements/lock.txt", NOT_HERE),
        (compiled, "pipeline/stages/__pycache__/evaluate.cpython-311.pyc", 1),
        pytest.param(linked, "log.txt", 1, marks=AGAIN),
        pytest.param(other_figures, "metrics/eval.json", 1, marks=AGAIN),
        pytest.param(other_folder, "data/pretrained/a.dvc", 1, marks=AGAIN),
        pytest.param(other_cache, ".dvc/config", 1, marks=AGAIN),
        pytest.param(lambda project: (project / "dvc.lock").unlink(), "dvc.lock", 1, marks=AGAIN),
    ],
    ids=[
        "code", "params", "pin", "command", "copy", "outside", "cut", "no project", "GPU", "packages", "compiled",
        "link", "figures", "folder", "cache", "no lock",
    ],
)  # fmt: skip
def test_a_repository_that_cannot_be_checked_is_refused(
    published: Path, checker: Path, tamper: Callable[[Path], None], key: str, status: int
) -> None:
    """Before any of its stages runs. The fault has its key."""
    tamper(published)
    commit(published)
    done = verify(checker, f"--from={published}")
    assert done.returncode == status, done.stderr
    assert any(line.startswith(f"verify: {key}: ") for line in done.stderr.splitlines()), done.stderr


def test_what_is_not_there_is_refused(published: Path, checker: Path) -> None:
    """No repository, and no such revision."""
    for words, key, status in (
        (("--from=../nothing",), "git clone ", NOT_HERE), ((f"--from={published}", "--rev", "none"), "--rev: ", 1)
    ):  # fmt: skip
        done = verify(checker, *words)
        assert done.returncode == status
        assert f"verify: {key}" in done.stderr


def test_an_address_is_no_option(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the name of an option is cloned. The current folder is the clone, and afterwards that of before."""
    published.rename(published.with_name("--bare"))
    monkeypatch.chdir(published.parent)
    with clone.of("--bare", "HEAD"):
        assert dvc_lock.LOCK.is_file()
    assert Path.cwd() == published.parent


@AGAIN
def test_an_image_that_is_asked_for_has_to_be_there(
    published: Path, checker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing runs on the host instead."""
    monkeypatch.setenv(container.VARIABLE, "no-such-image")
    done = verify(checker, f"--from={published}")
    assert done.returncode == NOT_HERE
    assert f"verify: {container.VARIABLE}: no-such-image" in done.stderr


def test_the_container_is_as_confined_as_the_projects_own(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the limits of docker/compose.yaml. It can write to the work copy, DVC's cache and the archives alone."""
    monkeypatch.chdir(published)
    words = container.inside(Job("a", published / "copy", ()), "image", published, Params()).python
    service = YAML(typ="safe", pure=True).load(PROJECT / "docker/compose.yaml")["services"]["repro-cpu"]
    limits = {
        "--read-only", *(f"--cap-drop={each}" for each in service["cap_drop"]),
        *(f"--security-opt={each}" for each in service["security_opt"]), f"--pids-limit={service['pids_limit']}",
        *(f"--tmpfs={each}" for each in service["tmpfs"]), f"--shm-size={service['shm_size']}", "--memory=0",
    }  # fmt: skip
    assert limits <= set(words)
    folders = [word.removeprefix("--volume=").split(":") for word in words if word.startswith("--volume=")]
    writable = {Path(source).relative_to(published).as_posix() for source, _, *mode in folders if mode != ["ro"]}
    assert writable == {"copy", ".dvc/cache", "data/archives"}


def test_what_a_stage_could_import_is_named(published: Path, checker: Path) -> None:
    """Files beside the code that hide a library, in a branch. DVC itself imports none of them."""
    call(published, "git", "checkout", "--quiet", "-b", "tampered")
    (published / "torch.py").write_text("raise SystemExit(1)\n")
    (published / "dvc.py").write_text("print('{}')\n")
    edited("params.yaml", "device: cpu", "device: cuda")(published)
    commit(published)
    call(published, "git", "checkout", "--quiet", "-")
    done = verify(checker, f"--from={published}", "--rev", "tampered")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("verify: commit "))
    assert "dvc.py, torch.py" in line
    assert done.returncode == NOT_HERE  # the GPU
