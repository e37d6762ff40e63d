"""Real kills of a real `dvc repro`, and what `perennial repro` repairs after a kill of DVC itself."""

import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from ruamel.yaml import YAML

from benchmarks.harness import workspace
from pipeline.data import corrections
from pipeline.versioning import dvc_lock, killed_dvc
from tests.conftest import PROJECT, on_cpu, read_params, write_params
from tests.faults import kill_sweep
from tests.helpers.projects import commit
from tests.helpers.trainings import wait_for, working_in


def entry(path: str, **nfiles: int) -> dict[str, Any]:
    """A file in a dvc.lock, or a folder of so many files."""
    md5 = hashlib.md5(path.encode()).hexdigest() + ".dir" * len(nfiles)
    return {"path": path, "hash": "md5", "md5": md5, "size": 4711, **nfiles}


# As DVC writes it.
LOCK = io.StringIO()
YAML().dump({"schema": "2.0", "stages": {
    "one": {"cmd": "python one.py", "deps": [entry("code", nfiles=12), entry("one.py")],
            "params": {"params.yaml": {"one.rate": 0.125, "one.names": ["a", "b"]}},
            "outs": [entry("data/one", nfiles=120)]},
    "two": {"cmd": "python two.py", "deps": [entry("data/one", nfiles=120)], "outs": [entry("two.csv")]},
}}, LOCK)  # fmt: skip
PIPELINE = """
stages:
  wait:
    cmd: exec {python} stage.py
    outs: [out]
  after:
    cmd: echo after > after
    outs: [after]
"""
# A stage that needs a second to save when it is interrupted, as training does.
STAGE = """
import ctypes, signal, sys, time
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
def save(number, _):
    signal.signal(number, signal.SIG_IGN)
    time.sleep(1)
    open("saved", "w").write(str(number))
    sys.exit(75)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, save)
if open("go").read() == "wait":
    open("began", "w").close()
    time.sleep(60)
open("out", "w").write("out")
"""


AGAIN = pytest.mark.slow("starts DVC two to four times for the same with another word; make test has the first")


@pytest.mark.nightly("four minutes; make test-ci kills each stage, processes, launchers, and a study under DVC")
def test_killed_at_seeded_moments_it_goes_on_to_the_same_lock() -> None:
    """Five signals at five moments of train: no process stays, no false record, the usual dvc.lock."""
    done = list(kill_sweep.sweep(5, seed=4))
    assert len(done) == 5
    assert not [trial for trial in done if trial.orphans or trial.false_record or not trial.same]


def test_a_cut_lock_is_noticed_or_states_nothing_by_halves() -> None:
    """A dvc.lock cut at any byte, or any other text, is noticed, or each entry that is left is the same as before."""
    lock = LOCK.getvalue()
    assert dvc_lock.is_whole(lock)
    assert not dvc_lock.is_whole("a line of text\n")
    before = YAML(typ="safe", pure=True).load(lock)["stages"]
    accepted = [length for length in range(len(lock)) if dvc_lock.is_whole(lock[:length])]
    assert 0 < len(accepted) < 20
    for length in accepted:
        for stage, row in YAML(typ="safe", pure=True).load(lock[:length])["stages"].items():
            for kind in ("deps", "outs"):
                assert all(file in before[stage][kind] for file in row.get(kind, [])), lock[:length]


def python(*arguments: str, folder: Path | None = None, check: bool = False) -> subprocess.CompletedProcess[str]:
    """`python -m ARGUMENTS…`, in the working folder or another one."""
    environ = {**os.environ, "DVC_SITE_CACHE_DIR": str((folder or Path.cwd()) / ".site")}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=check)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two small stages under real DVC. Tests copy it: to start DVC takes a second."""
    folder = tmp_path_factory.mktemp("small") / "project"
    (folder / "data").mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    python("dvc", "init", "--quiet", folder=folder, check=True)
    (folder / "dvc.yaml").write_text(PIPELINE.format(python=sys.executable))
    (folder / "stage.py").write_text(STAGE)
    (folder / "go").write_text("go")
    (folder / "data/corrections.csv").write_text(corrections.EMPTY)
    write_params(folder / "params.yaml", on_cpu(read_params()))
    return folder


@pytest.fixture(scope="module")
def small_and_done(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Path:
    """The same after a run. Tests copy it."""
    folder = shutil.copytree(small, tmp_path_factory.mktemp("done") / "project", symlinks=True)
    python("pipeline", "repro", folder=folder, check=True)
    return folder


def enter_copy(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a repository as the working folder."""
    folder = shutil.copytree(source, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(folder / ".site"))
    return folder


@pytest.fixture
def project(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two small stages under real DVC, as the working folder."""
    return enter_copy(small, tmp_path, monkeypatch)


@pytest.fixture
def done(small_and_done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same after a run."""
    return enter_copy(small_and_done, tmp_path, monkeypatch)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `perennial repro` to its end."""
    return python("pipeline", "repro", *arguments)


@pytest.mark.usefixtures("done")
def test_a_cut_lock_is_put_back() -> None:
    """A cut or empty dvc.lock is restored, with a message, and no stage runs again."""
    content = Path("dvc.lock").read_bytes()
    Path("dvc.lock").write_bytes(content[: len(content) // 2])
    again = run("--verbose")
    assert again.returncode == 0, again.stderr
    assert again.stderr.startswith("repro: dvc.lock ")
    assert "Running stage" not in again.stdout
    assert Path("dvc.lock").read_bytes() == content
    Path("dvc.lock").write_bytes(b"")
    assert len(killed_dvc.repair()) == 1
    assert Path("dvc.lock").read_bytes() == content


def test_a_lock_has_the_order_of_dvc_yaml(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ran first: the stages have their own bytes, and a lock that is cut stays as it is."""
    lock = (finished / "dvc.lock").read_text()
    head, *blocks = re.split(r"(?m)^(?=  \w)", lock)
    assert [block.partition(":")[0].strip() for block in blocks] == [*workspace.STAGES]
    monkeypatch.chdir(tmp_path)
    shutil.copy(PROJECT / "dvc.yaml", tmp_path)
    mixed = head + "".join(blocks[3:] + blocks[:3])
    for text, expected in ((mixed, lock), (mixed[:-200], mixed[:-200]), (lock, lock)):
        dvc_lock.LOCK.write_text(text)
        dvc_lock.put_in_order()
        assert dvc_lock.LOCK.read_text() == expected


@pytest.mark.usefixtures("done")
def test_without_a_copy_the_committed_lock_is_taken_and_without_that_none() -> None:
    """The second choice is Git's; the last is to begin without one, with a message."""
    content = Path("dvc.lock").read_bytes()
    commit(Path())
    dvc_lock.BACKUP.unlink()
    Path("dvc.lock").write_bytes(b"")
    assert len(killed_dvc.repair()) == 1
    assert Path("dvc.lock").read_bytes() == content
    Path("dvc.lock").write_bytes(b"schema: '2.0'\nstag")
    subprocess.run(["git", "update-ref", "-d", "HEAD"], check=True)
    assert len(killed_dvc.repair()) == 1
    assert not Path("dvc.lock").exists()


SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]


def lock(project: Path, pid: int, after: float) -> None:
    """Leave the rwlock that a `dvc repro` of this PID would have written, so many seconds after it began."""
    process = {"pid": pid, "cmd": "/bin/dvc repro"}
    content = {"read": {str(project / "go"): [process]}, "write": {str(project / "out"): process}}
    killed_dvc.RWLOCK.write_text(json.dumps(content))
    os.utime(killed_dvc.RWLOCK, times=(psutil.Process(pid).create_time() + after,) * 2)


@pytest.mark.parametrize(("argument", "after"), [("repro", -1), pytest.param("another", 1, marks=AGAIN)])
def test_a_lock_of_a_killed_dvc_is_removed_though_another_process_has_its_pid(
    done: Path, argument: str, after: float
) -> None:
    """DVC alone takes any process with this PID for the holder of the lock; in containers PIDs repeat soon."""
    with subprocess.Popen([*SLEEP, argument]) as other:
        lock(done, other.pid, after)
        command = run()
        assert other.poll() is None
        other.kill()
    assert command.returncode == 0, command.stderr
    assert command.stderr.startswith(f"repro: {killed_dvc.RWLOCK} ")


def test_a_lock_whose_holder_lives_stays(done: Path) -> None:
    """Also if the holder cannot be recognized as DVC: it is older than the lock and has the arguments named there."""
    with subprocess.Popen([*SLEEP, "repro"]) as holder:
        lock(done, holder.pid, after=1)
        before = killed_dvc.RWLOCK.read_bytes()
        assert not killed_dvc.works(done)
        refused = run()
        assert killed_dvc.RWLOCK.read_bytes() == before
        holder.kill()
    assert refused.returncode != 0
    assert refused.stderr.startswith("ERROR: ")  # of DVC; before it, nothing is repaired


@pytest.mark.parametrize(
    "content", ["", "null", "[]", '{"read": null}', '{"write": {"out": {"pid": "x"}}}', "[" * 100_000]
)
def test_an_rwlock_that_is_none_is_removed(project: Path, content: str) -> None:
    """Any content: nothing fails, and DVC starts."""
    killed_dvc.RWLOCK.parent.mkdir(exist_ok=True)
    killed_dvc.RWLOCK.write_text(content)
    assert len(killed_dvc.repair()) == 1
    assert not killed_dvc.RWLOCK.exists()


@pytest.mark.parametrize("options", [["-u", "-m"], pytest.param(["-X", "utf8", "-m"], marks=AGAIN)])
def test_a_dvc_is_known_however_it_was_started(project: Path, options: list[str]) -> None:
    """Also with Python's options before its name."""
    Path("go").write_text("wait")
    with subprocess.Popen([sys.executable, *options, "dvc", "repro"], start_new_session=True) as dvc:
        wait_for_stage(dvc)
        assert killed_dvc.works(project)
        assert not killed_dvc.works(project / "elsewhere")
        os.killpg(dvc.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("command", "is_ours"),
    [
        ("python -m pipeline repro", True), ("python -u -m pipeline rank train", True),
        ("srun --nodes=2 python -m pipeline rank train", True), ("setpriv --pdeathsig TERM python -m pipeline", True),
        ("python -m pipeline.planning.trial question", True), ("python -m pipelines", False),
        ("less /home/me/perennial", False), ("python -m", False),
    ],
)  # fmt: skip
def test_a_process_of_this_program_is_known_by_its_command(command: str, is_ours: bool) -> None:
    """A work copy is removed only when none works in it."""
    assert killed_dvc.is_perennial(command.split()) == is_ours


def wait_for_stage(process: subprocess.Popen[Any]) -> None:
    """Wait until the stage runs."""
    wait_for(lambda: Path("began").exists() or process.poll() is not None, "the stage does not begin")
    assert process.poll() is None


def begin(**options: Any) -> subprocess.Popen[Any]:
    """Start `perennial repro` and wait until its stage runs."""
    Path("go").write_text("wait")
    command = subprocess.Popen([sys.executable, "-m", "pipeline", "repro"], start_new_session=True, **options)
    wait_for_stage(command)
    return command


def test_nothing_is_put_right_while_a_dvc_works_here(project: Path) -> None:
    """It may be writing these very files."""
    command = begin()
    Path("dvc.lock").write_bytes(b"")
    assert killed_dvc.repair() == []
    command.send_signal(signal.SIGTERM)
    command.wait()
    assert len(killed_dvc.repair()) == 2
    assert killed_dvc.repair() == []


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=AGAIN)], ids=lambda number: number.name
)
def test_a_signal_reaches_the_stage_and_it_ends_last(project: Path, number: signal.Signals) -> None:
    """The stage saves, `perennial repro` then ends with an error, no process stays, and the next run succeeds."""
    command = begin()
    command.send_signal(number)
    assert command.wait() != 0
    assert Path("saved").exists()
    assert working_in(project) == [psutil.Process(os.getpid())]
    assert not Path("dvc.lock").exists()
    Path("go").write_text("go")
    assert run().returncode == 0


def test_killed_itself_it_takes_dvc_and_the_stage_along(project: Path) -> None:
    """After KILL of `perennial repro` the stage is terminated, and saves."""
    command = begin()
    command.kill()
    command.wait()
    wait_for(lambda: working_in(project) == [psutil.Process(os.getpid())], "it goes on")
    assert Path("saved").read_text() == str(int(signal.SIGTERM))
    assert not Path("dvc.lock").exists()


@pytest.mark.parametrize(("argument", "status"), [("no_such_stage", 255), ("--interactive", 1)])
def test_the_exit_status_is_dvcs(project: Path, argument: str, status: int) -> None:
    """Also if DVC refuses; the arguments are passed to DVC. Questions are refused: DVC could not read an answer."""
    refused = run(argument)
    assert refused.returncode == status
    assert argument in refused.stderr


def test_ctrl_z_stops_dvc_and_its_stage_and_they_go_on(project: Path) -> None:
    """Stopped by the terminal, the command stops what it started; continued, it continues it."""
    command = begin()
    processes = [psutil.Process(command.pid), *psutil.Process(command.pid).children(recursive=True)]
    assert len(processes) > 2
    command.send_signal(signal.SIGTSTP)
    wait_for(lambda: {process.status() for process in processes} == {psutil.STATUS_STOPPED}, "one goes on")
    command.send_signal(signal.SIGCONT)
    wait_for(lambda: psutil.STATUS_STOPPED not in {process.status() for process in processes}, "one is stopped")
    command.send_signal(signal.SIGTERM)
    assert command.wait() != 0
    assert Path("saved").exists()


def test_a_dvc_that_somebody_kills_is_named(project: Path) -> None:
    """As the kernel kills a process when memory is full: nobody else says anything."""
    command = begin(stderr=subprocess.PIPE, text=True)
    (dvc,) = psutil.Process(command.pid).children()
    dvc.kill()
    _, messages = command.communicate()
    assert command.returncode == 128 + signal.SIGKILL
    assert messages.splitlines()[-1].startswith("repro: dvc repro: ")
