"""`perennial verify` confirms a correct dvc.lock, names every difference, and leaves no files behind."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.attest import repetition
from pipeline.base import files
from pipeline.base.errors import DIFFERENT, Kind, UserError
from pipeline.commands import verify as command
from pipeline.config import params
from pipeline.studies import runner
from pipeline.versioning import dvc_lock
from tests.conftest import PROJECT, set_params
from tests.helpers.damage import edited, flip
from tests.helpers.projects import call, commit, verify, verify_environment
from tests.helpers.refusals import refuses
from tests.helpers.sources import contents
from tests.helpers.trainings import gone, wait_for

Change = Callable[[Path], object]
SHARD = "data/packed/images-00000.bin"
AGAIN = pytest.mark.nightly("Git and DVC for each of them; make test has one of each kind")


@pytest.fixture
def project(finished_copy: Path) -> Path:
    """A copy of the finished project, which is the working folder; TMPDIR for its work copy is beside it."""
    (finished_copy.parent / "temporary").mkdir()
    return finished_copy


def results(stdout: str, what: str = "same") -> list[str]:
    """The outputs that are the same, or that differ."""
    return [line.split()[0] for line in stdout.splitlines() if line.endswith(f"  {what}")]


@pytest.mark.slow("repeats every stage; make test has what is refused before that")
def test_the_same_bytes_are_confirmed(project: Path) -> None:
    """Every output is made again and compared, and neither the cache nor the folder changes."""
    before, outs = contents(project / ".dvc/cache"), dvc_lock.outputs(dvc_lock.read())
    done = verify(project)
    assert done.returncode == 0, done.stderr
    assert (len(outs) >= 10, {*results(done.stdout)}, results(done.stdout, "differs")) == (True, {*outs}, [])
    assert contents(project / ".dvc/cache") == before
    assert call(project, "git", "status", "--porcelain").stdout == ""


@pytest.mark.slow("repeats stages; make test has what is refused before that")
def test_an_output_that_the_stage_does_not_write_differs(project: Path) -> None:
    """A forged model card, with its hash in dvc.lock: only a repetition shows it."""
    card = project / "models/README.md"
    text = card.read_text()
    card.unlink()
    card.write_text(text + "It is always right.\n")
    call(project, "dvc", "commit", "--force", "card")
    commit(project)
    done = verify(project, "--stage", "card")
    assert (done.returncode, results(done.stdout, "differs")) == (DIFFERENT, ["models/README.md"]), done.stderr


def in_lock(old: str, new: str) -> Change:
    """Replace the first such text in dvc.lock."""
    return lambda project: (project / "dvc.lock").write_text(new.join((project / "dvc.lock").read_text().split(old, 1)))


def flip_a_bit(project: Path) -> None:
    """Write a new file of the same name, because the old one may share its bytes with DVC's cache."""
    content = (project / SHARD).read_bytes()
    files.remove(project / SHARD)
    (project / SHARD).write_bytes(content)
    flip(project / SHARD)


def write_another_hash(project: Path) -> None:
    """Write a lock with a hash that no run wrote."""
    lock = project / dvc_lock.LOCK
    expected = dvc_lock.read(lock)["train"]["outs"]["models/model.json"]
    lock.write_text(lock.read_text().replace(expected, expected[::-1]))


def lead_out(project: Path) -> None:
    """Outputs outside of the folder."""
    in_lock("  - path: models/model.json", "  - path: ../models/model.json")(project)
    in_lock("  - path: models/config.json", "  - path: /etc/hostname")(project)


@pytest.mark.parametrize(
    ("damage", "is_committed", "faults"),
    [
        (flip_a_bit, False, [(SHARD, "differs")]),
        pytest.param(lambda _: shutil.rmtree("data/images"), False, [("data/images", "differs")], marks=AGAIN),
        pytest.param(write_another_hash, True, [("models/model.json", "differs")], marks=AGAIN),
        (lead_out, True, [("dvc.lock", "value")] * 2),
        (in_lock("      md5: ", "      md5: 7 #"), True, [("dvc.lock", "damaged")]),
        (in_lock("    cmd: ", "    run: "), True, [("dvc.yaml", "damaged")]),
        pytest.param(in_lock("schema: '2.0'", "schema: '9.0'"), True, [("dvc.yaml", "damaged")], marks=AGAIN),
    ],
    ids=["a bit", "a folder", "a hash", "outside", "no hash", "no command", "schema"],
)
def test_a_folder_that_is_not_as_recorded_is_refused(
    project: Path, damage: Change, is_committed: bool, faults: list[tuple[str, Kind]]
) -> None:
    """A damaged output, and a damaged dvc.lock. Of DVC's own message no line of the file is printed."""
    damage(project)
    if is_committed:
        commit(project)
    with refuses(*faults) as error:
        command.verify(None)
    assert "│" not in str(error.value)


def test_what_was_committed_without_a_run_is_stale(project: Path) -> None:
    """Before the commit each file is named; after it, the stage and the changed dependency."""
    edited("pipeline/learning/schedule.py", "math.cos(", "1.0 * math.cos(")(project)
    edited("docker/pins.env", "APEX_COMMIT=", "APEX_COMMIT=0")(project)
    edited("dvc.yaml", "python -m pipeline split", "python -B -m pipeline split")(project)
    set_params(project, train__lr=0.02)
    changed = ("docker/pins.env", "dvc.yaml", "params.yaml", "pipeline/learning/schedule.py")
    with refuses(*((name, "differs") for name in changed)):
        command.verify(None)
    commit(project)
    with pytest.raises(UserError) as error:
        command.verify(None)
    stale = {(fault.key, fault.value) for fault in error.value.faults}
    of_train = {("the stage train", part) for part in (changed[0], "params.yaml: train.lr", changed[3])}
    assert stale > of_train | {("the stage split", "its command in dvc.yaml")}


def test_what_is_not_in_git_is_not_compared(project: Path) -> None:
    """A dvc.lock that is not committed or missing is named, and so is an unknown stage."""
    call(project, "git", "rm", "--quiet", "--cached", "dvc.lock")
    with refuses(("dvc.lock", "differs")):
        command.verify(None)
    with refuses(("--stage", "unknown")):
        command.verify("trian")
    (project / "dvc.lock").unlink()
    with refuses(("dvc.lock", "missing")):
        command.verify(None)


@pytest.mark.nightly("repeats a stage under DVC; make test-ci has the same command in a clone")
def test_a_command_that_is_not_the_projects_is_named_before_it_runs(project: Path) -> None:
    """A stage that copies its outputs gives every recorded byte, and shows nothing: exit status 1."""
    shutil.copytree("metrics", "old/metrics")
    Path("old/models").mkdir()
    shutil.copy("models/acceptance.json", "old/models")
    edited("dvc.yaml", "exec python -m pipeline evaluate", "cp -r old/. .")(project)
    call(project, "dvc", "repro", "evaluate")
    commit(project)
    done = verify(project, "--stage", "evaluate")
    assert (done.returncode, results(done.stdout, "differs")) == (1, [])
    named, _, ran = done.stdout.partition(": done (1 of 1)")
    assert "verify: the stage evaluate: 'cp -r old/. .'" in named
    assert ran


def test_with_an_inbox_the_rest_is_repeated(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Photos in no commit: a message says so, and the other stages are repeated. After `dvc add` all are."""
    stages = dvc_lock.read()
    files.write_text(Path("data/inbox/poppy/1.png"), "a photo")
    set_params(project, data__source="inbox")
    assert {*command.plan(params.load(), stages, None)} == {*stages} - {"download"}
    assert "data/inbox: " in capsys.readouterr().out
    with refuses(("data/inbox", "missing")):
        command.plan(params.load(), stages, "download")
    files.write_text(Path("data/inbox/poppy.dvc"), "outs: []\n")
    call(project, "git", "add", "--force", "data/inbox/poppy.dvc")
    assert {*command.plan(params.load(), stages, None)} == {*stages}
    assert command.plan(params.load(), stages, "download") == ["download"]


@pytest.mark.nightly("trainings that verify starts; make test-ci stops others, also those of studies")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interruption_leaves_nothing(project: Path, number: signal.Signals) -> None:
    """Interrupted in the middle of training: the processes end, the copy is removed, the status is not zero."""
    temporary = project.parent / "temporary"
    words, environ = [sys.executable, "-m", "pipeline", "verify", "--stage", "train"], verify_environment(project)
    with subprocess.Popen(words, cwd=project, env=environ, stderr=subprocess.PIPE, text=True) as process:
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
        "print(*verify.run(runner.Job('commit 1', Path('copy'), ('train',))))"
    ))  # fmt: skip
    assert done.stdout.splitlines()[-1].endswith(f": {repetition.LOG}")
    assert "commit 1: " in done.stdout
    assert (tmp_path / repetition.LOG).read_text() == (tmp_path / "copy" / runner.LOG).read_text() != ""
