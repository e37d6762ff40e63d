"""`perennial verify` confirms a correct dvc.lock, names every difference, and leaves no files behind."""

import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from pipeline.attest import repetition
from pipeline.base import files
from pipeline.base.errors import DIFFERENT
from pipeline.config import params
from pipeline.models import exported
from pipeline.studies import record, runner
from pipeline.versioning import dvc_lock
from tests.conftest import PROJECT, set_params
from tests.helpers.projects import call, commit, commit_wrong_weights, edited, verify, verify_environment
from tests.helpers.trainings import gone, wait_for

SHARD = "data/packed/images-00000.bin"
AGAIN = pytest.mark.nightly("verify starts again for each of them, with Git and DVC; make test has one of each kind")
ANOTHER = pytest.mark.nightly("the same with another signal; make test-ci has SIGTERM")
ONE_STAGE = pytest.mark.slow("repeats a stage under DVC; make test repeats all of them for a true dvc.lock")
LATER = "pipeline/stages/split.py"  # code that has changed since the recorded run


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """The finished project, to be changed by a test; TMPDIR for its work copy is beside it."""
    (tmp_path / "temporary").mkdir()
    return shutil.copytree(finished, tmp_path / "project", symlinks=True)


def cache(project: Path) -> dict[str, bytes]:
    """The files of DVC's cache and run cache."""
    inside = project / ".dvc/cache"
    return {str(path.relative_to(inside)): path.read_bytes() for path in inside.rglob("*") if path.is_file()}


def flip_a_bit(path: Path) -> None:
    """Write a new file of the same name, because the old one may share its bytes with DVC's cache."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    files.remove(path)
    path.write_bytes(content)


def test_the_same_bytes_are_confirmed(project: Path) -> None:
    """Every output is made again and compared, and neither the cache nor the folder changes."""
    before, stage_hashes = cache(project), dvc_lock.read(project / "dvc.lock")
    outs = [out for hashes in stage_hashes.values() for out in hashes["outs"]]
    done = verify(project)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(outs) >= 10
    assert all(any(line.startswith(f"{out} ") and line.endswith("  same") for line in lines) for out in outs)
    assert "differs" not in done.stdout
    for key in ("git.commit", "cpu_capability", "versions.torch"):
        (cells,) = (line.split() for line in lines if line.startswith(f"{key} "))
        assert len(cells) == 3
        assert "?" not in cells
    assert "dvc.lock" in lines[-1]
    assert cache(project) == before
    assert call(project, "git", "status", "--porcelain").stdout == ""


def write_another_hash(lock: Path) -> None:
    """Write a lock with a hash that no run wrote."""
    expected = dvc_lock.read(lock)["train"]["outs"]["models/model.json"]
    lock.write_text(lock.read_text().replace(expected, expected[::-1]))


def commit_another_hash(project: Path) -> None:
    """Commit a dvc.lock with such a hash."""
    write_another_hash(project / "dvc.lock")
    commit(project)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        pytest.param(lambda project: flip_a_bit(project / SHARD), ["data/packed", SHARD], marks=AGAIN),
        pytest.param(lambda project: shutil.rmtree(project / "data/images"), ["data/images"], marks=AGAIN),
        pytest.param(commit_another_hash, 2 * ["models/model.json"], marks=AGAIN),  # and its object
    ],
    ids=["a bit", "a folder", "a hash"],
)
def test_an_output_that_is_not_as_recorded_is_named(
    project: Path, damage: Callable[[Path], None], named: list[str]
) -> None:
    """A changed bit (the output, and the file in it), a missing folder without its files, and a tampered hash in a
    committed dvc.lock. None is stale."""
    damage(project)
    done = verify(project)
    assert done.returncode == 1
    assert [line.split(": ")[:2] for line in done.stderr.splitlines()] == [["verify", name] for name in named]


@ONE_STAGE
def test_a_false_hash_is_noticed(project: Path) -> None:
    """For wrong weights with a matching dvc.lock, the number of different tensors and their difference are printed."""
    tensors = commit_wrong_weights(project)
    done = verify(project, "--stage", "train")
    assert done.returncode == DIFFERENT, done.stderr
    assert f"models/model.safetensors: 1 of {tensors} tensors differ, by at most 0.5 (classifier.1.bias)" in done.stdout
    assert done.stdout.endswith("verify: differs: models/model.safetensors\n")
    assert "data/packed" not in done.stdout


@ONE_STAGE
def test_a_command_that_is_not_the_projects_is_named_before_it_runs(project: Path) -> None:
    """A stage that copies its outputs gives every recorded byte, and shows nothing: exit status 1."""
    shutil.copytree(project / "metrics", project / "old/metrics")
    (project / "old/models").mkdir()
    shutil.copy(project / "models/acceptance.json", project / "old/models")
    command = "exec setpriv --pdeathsig TERM python -m pipeline evaluate"
    edited("dvc.yaml", command, "cp -r old/. .")(project)
    call(project, "dvc", "repro", "evaluate")
    commit(project)
    done = verify(project, "--stage", "evaluate")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    (message,) = [line for line in lines if line.startswith("verify: the stage evaluate: ")]
    assert "'cp -r old/. .'" in message
    assert "pipeline evaluate" in message
    (last,) = [line for line in lines if line.endswith(": done (1 of 1)")]
    assert lines.index(message) < lines.index(last)
    assert "  differs" not in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("  - path: models/model.json", "  - path: ../models/model.json", "dvc.lock: "),
        pytest.param("  - path: models/model.json", "  - path: /etc/hostname", "dvc.lock: ", marks=AGAIN),
        pytest.param("schema: '2.0'", "schema: '9.0'", "dvc status --json: ", marks=AGAIN),
        pytest.param("    cmd: exec", "    command: exec", "dvc status --json: ", marks=AGAIN),
        pytest.param("      md5: ", "      md5: 7 #", "dvc.lock: ", marks=AGAIN),
    ],
)
def test_a_damaged_lock_is_refused(project: Path, old: str, new: str, key: str) -> None:
    """Committed, so `git checkout` does not help. DVC's own message names no remedy."""
    lock = project / "dvc.lock"
    lock.write_text(new.join(lock.read_text().split(old, 1)))
    commit(project)
    done = verify(project)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"verify: {key}")
    assert "│" not in done.stderr


def other_lr(project: Path) -> None:
    set_params(project, train__lr=0.02)


@pytest.mark.parametrize(
    ("edit", "file", "stale"),
    [
        (  # dvc.yaml names the folder, and DVC no file in it
            edited("pipeline/learning/schedule.py", "math.cos(", "1.0 * math.cos("), "pipeline/learning/schedule.py",
            "train: pipeline/learning/schedule.py",
        ),
        pytest.param(
            edited("docker/pins.env", "APEX_COMMIT=", "APEX_COMMIT=0"), "docker/pins.env", "train: docker/pins.env",
            marks=AGAIN,
        ),
        pytest.param(other_lr, "params.yaml", "train: params.yaml: train", marks=AGAIN),
        pytest.param(
            edited("dvc.yaml", "python -m pipeline split", "python -B -m pipeline split"), "dvc.yaml",
            "split: its command in dvc.yaml", marks=AGAIN,
        ),
    ],
    ids=["arithmetic", "pin", "params", "command"],
)  # fmt: skip
def test_what_was_committed_without_a_run_is_stale(
    project: Path, edit: Callable[[Path], None], file: str, stale: str
) -> None:
    """Before the commit the file is named; after it, the stage and the changed dependency."""
    edit(project)
    done = verify(project)
    assert done.returncode == 1
    assert f"verify: {file}: " in done.stderr
    commit(project)
    done = verify(project)
    assert done.returncode == 1
    assert f"verify: the stage {stale}: " in done.stderr


def test_what_is_not_in_git_is_not_compared(project: Path) -> None:
    """A dvc.lock that is not committed or missing is named, and so is an unknown stage."""
    call(project, "git", "rm", "--quiet", "--cached", "dvc.lock")
    done = verify(project)
    assert done.returncode == 1
    assert [line.split(": ")[:2] for line in done.stderr.splitlines()] == [["verify", "dvc.lock"]]
    assert "--stage: 'trian'" in verify(project, "--stage", "trian").stderr
    (project / "dvc.lock").unlink()
    assert "dvc.lock: not found" in verify(project).stderr


@pytest.fixture
def clone(project: Path) -> Path:
    """A fresh clone of a commit without a dvc.lock, in which the run of the project is the recorded one."""
    folder = project / record.DEMO
    folder.mkdir(parents=True)
    for name in (dvc_lock.LOCK.name, "params.yaml"):
        shutil.copyfile(project / name, folder / name)
    call(project, "git", "rm", "--quiet", "-r", "--cached", "dvc.lock", "metrics")
    (project / "dvc.lock").unlink()
    shutil.rmtree(project / "metrics")
    other_lr(project)
    with (project / LATER).open("a") as code:  # dvc.yaml names this file
        code.write("# a later commit\n")
    commit(project)
    call(project, "git", "clone", "--quiet", ".", "../clone")
    return project.parent / "clone"


@pytest.mark.nightly("a whole pipeline under DVC; make test-ci repeats the run of a clone (test_clone)")
def test_a_fresh_clone_repeats_the_recorded_run_and_names_a_forged_hash(clone: Path) -> None:
    """Without a dvc.lock, with other params and with later code, which is named. Every output is compared: the one with
    the forged hash alone differs.

    The folder stays as it is. One stage alone is refused: the cache has no inputs for it.
    """
    assert "--stage: 'train'" in verify(clone, "--stage", "train").stderr
    lock, forged = record.DEMO / dvc_lock.LOCK, "models/model.json"
    write_another_hash(clone / lock)
    assert f"verify: {lock}: " in verify(clone).stderr  # it is not committed
    commit(clone)
    done = verify(clone)
    assert done.returncode == DIFFERENT, done.stderr
    lines = done.stdout.splitlines()
    assert str(lock) in next(line for line in lines if line != lines[0])
    stage_hashes = dvc_lock.read(clone / lock)
    for output in (path for hashes in stage_hashes.values() for path in hashes["outs"]):
        end = "  differs" if output == forged else "  same"
        assert any(line.startswith(f"{output} ") and line.endswith(end) for line in lines), output
    (note,) = (line for line in lines if line.startswith(f"verify: changed since {lock} was written: "))
    assert LATER in note
    assert lines[-1] == f"verify: differs: {forged}"
    assert call(clone, "git", "status", "--porcelain").stdout == ""
    assert not (clone / "dvc.lock").exists()


@pytest.mark.nightly("a whole pipeline under DVC; make test repeats one from drawn images")
def test_an_archive_that_was_downloaded_is_found(project: Path) -> None:
    """The work copy uses the archives of this folder, so download runs without a network."""
    (project / "data/archives").mkdir()
    path = project / "data/archives/drawn.tgz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(project / "data/images", "flowers")
    sha256 = files.sha256(path)
    path.rename(path.with_name(sha256))
    address = "https://localhost:1/drawn.tgz"
    set_params(project, data__source="archive", data__url=address, data__sha256=sha256, evaluate__onnx=False)
    call(project, "dvc", "repro")
    commit(project)
    done = verify(project, "--stage", "download")
    assert done.returncode == 0, done.stderr
    assert f"data/archives/{sha256}" not in done.stderr


@pytest.mark.nightly("two whole pipelines under DVC; make test confirms a dvc.lock without an inbox")
def test_with_an_inbox_the_rest_is_repeated(project: Path) -> None:
    """Photos in the inbox are in no commit: a message says so, and the other stages are repeated.

    After `dvc add` they are in the commit, and download is repeated too. Photos that are read where they are
    are read there by the work copy.
    """

    def run(source: str) -> None:
        set_params(project, data__source=source, evaluate__onnx=False)
        call(project, "dvc", "repro")
        commit(project)

    shutil.copytree(project / "data/images", project / "data/inbox", dirs_exist_ok=True)
    run("inbox")
    refusal = verify(project, "--stage", "download")
    assert refusal.returncode == 1
    assert refusal.stderr.startswith("verify: data/inbox: ")
    done = verify(project)
    assert done.returncode == 0, done.stderr
    assert "data/inbox: " in done.stdout
    stages = dvc_lock.read(project / "dvc.lock").items()
    assert {line.split()[0] for line in done.stdout.splitlines() if line.endswith("  same")} == {
        out for name, hashes in stages if name != "download" for out in hashes["outs"]
    }
    run("folder")
    done = verify(project, "--stage", "split")
    assert done.returncode == 0, done.stderr
    assert "data/split.csv " in done.stdout
    run("inbox")
    (project / "data/inbox/poppy").rename(project / "data/inbox/poppies")
    assert "verify: data/inbox: " in verify(project).stderr
    call(project, "dvc", "add", *(str(path) for path in files.visible(project / "data/inbox")))
    run("inbox")
    done = verify(project, "--stage", "download")
    assert done.returncode == 0, done.stderr
    assert "data/images " in done.stdout


@pytest.mark.slow("two trainings that verify starts; make test stops trainings without it, and confirms a dvc.lock")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=ANOTHER)], ids=lambda n: n.name)
def test_an_interruption_leaves_nothing(project: Path, number: signal.Signals) -> None:
    """Interrupted in the middle of training: the processes end, the copy is removed, the status is not zero."""
    temporary = project.parent / "temporary"
    command = [sys.executable, "-m", "pipeline", "verify", "--stage", "train"]
    with subprocess.Popen(
        command, cwd=project, env=verify_environment(project), stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(lambda: list(temporary.glob("*/copy/runs/*")) or process.poll() is not None, "no training")
        (copy,) = temporary.glob("*/copy")
        process.send_signal(number)
        _, message = process.communicate()
    assert process.returncode == 130
    assert message.startswith("verify: interrupted; ")
    assert not list(temporary.glob("perennial-*"))
    assert gone(copy)


def test_the_log_of_a_failed_stage_stays(tmp_path: Path) -> None:
    """It is outside the work copy, which is removed, and the message has its path. Here DVC finds no dvc.yaml."""
    shutil.copyfile(PROJECT / params.FILE, tmp_path / params.FILE)
    for name in ("copy", repetition.LOG.parent):
        (tmp_path / name).mkdir(parents=True)
    done = call(tmp_path, "python", "-c", (  # a process of its own: it becomes the parent of orphans
        f"import sys; sys.path.append({str(PROJECT)!r}); "
        "from pathlib import Path; from pipeline.commands import verify; from pipeline.studies import runner; "
        "print(*verify.run(runner.Job('commit 1', Path('copy'), ('train',)), [runner.here()]))"
    ))  # fmt: skip
    assert done.stdout.splitlines()[-1].endswith(f": {repetition.LOG}")
    assert "commit 1: " in done.stdout
    assert (tmp_path / repetition.LOG).read_text() == (tmp_path / "copy" / runner.LOG).read_text() != ""


def test_tensors_are_compared_by_their_bytes(tmp_path: Path) -> None:
    """The sign of zero counts. Other shapes and missing tensors are counted separately. A cut file is reported."""
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    tensors: dict[str, Any] = {"a": torch.zeros(2), "b": torch.ones(3), "n": torch.tensor(4), "c": torch.ones(1)}
    safetensors.torch.save_file(tensors, one)
    assert exported.tensor_differences(one, one) == "0 of 4 tensors differ"
    safetensors.torch.save_file({**tensors, "a": -torch.zeros(2)}, two)
    assert exported.tensor_differences(one, two) == "1 of 4 tensors differ, by at most 0 (a)"
    safetensors.torch.save_file({"n": torch.tensor(7), "b": torch.ones(4), "a": torch.zeros(2)}, two)
    assert exported.tensor_differences(one, two) == (
        "1 of 4 tensors differ, by at most 3 (n); 2 have another shape or dtype, or are in one file only"
    )
    two.write_bytes(one.read_bytes()[:50])
    assert exported.tensor_differences(one, two).startswith("cannot be compared: ")
