"""`perennial repro` is DVC in its process: what it says, its locks, signals and kills, and `dvc repro` beside it."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dvc
import psutil
import pytest
from dvc.utils.serialize import dump_yaml
from ruamel.yaml import YAML

from benchmarks.harness import workspace
from pipeline.base import errors, files, linux
from pipeline.planning import forecast
from pipeline.versioning import changed_dvc, dvc_lock, in_process, processes, questions
from tests.conftest import PROJECT, read_params
from tests.helpers.in_process import create_small, enter_copy, run
from tests.helpers.projects import commit
from tests.helpers.refusals import refuses
from tests.helpers.terminals import on_terminal
from tests.helpers.trainings import wait_for, working_in

REPRO = [sys.executable, "-m", "pipeline", "repro"]
RWLOCK, ME = Path(".dvc/tmp/rwlock"), psutil.Process(os.getpid())
AGAIN = pytest.mark.nightly("the same with another signal; make test has the first")


def test_dvc_is_the_one_that_is_changed() -> None:
    """For another version, first read again what changed_dvc.py names."""
    assert dvc.__version__ == changed_dvc.CHECKED


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two small stages. Tests copy it."""
    return create_small(tmp_path_factory.mktemp("small") / "project")


@pytest.fixture
def project(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy as the working folder."""
    return enter_copy(small, tmp_path, monkeypatch)


@pytest.fixture
def done(project: Path, capfd: pytest.CaptureFixture[str]) -> Path:
    """The same after a run."""
    assert run(capfd)[0] == 0
    return project


def how(text: str) -> None:
    """How a stage ends."""
    Path("how").write_text(text)


# ---- what a person sees


def test_only_the_stages_speak(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """On a terminal, which the stages have as their own. What does not run is named in one line. --verbose is DVC's."""
    status, stdout = on_terminal(REPRO, project, env=workspace.environment(project) | {"PYTHONPATH": str(PROJECT)})
    assert status == 0
    assert stdout.replace("\r", "").splitlines()[1:3] == ["one: begins; True, True", "two: begins; True, True"]
    assert run(capfd)[1:] == (["repro: unchanged: one, two"], [])
    Path("two").unlink()
    assert run(capfd)[1:] == (["repro: unchanged: one; taken from DVC's cache: two"], [])
    assert "Stage 'two' didn't change, skipping" in run(capfd, "--verbose")[1]
    assert run(capfd, "--quiet")[1] == []
    how("two fails")  # but nothing runs
    status, stdout_lines, _ = run(capfd, "--dry", "--force")
    assert (status, [line for line in stdout_lines if line.startswith("Running")]) == (
        0, ["Running stage 'one':", "Running stage 'two':"]
    )  # fmt: skip


@pytest.mark.usefixtures("project")
def test_a_stage_that_refuses_has_the_last_line(capfd: pytest.CaptureFixture[str]) -> None:
    """DVC's own line about it is not shown. A stage that a signal ended has said nothing."""
    begins = ["one: begins; False, False", "two: begins; False, False"]
    how("two fails")
    assert run(capfd) == (255, begins, ["two: refused"])
    how("two is killed")
    status, stdout, (line,) = run(capfd)
    assert (status, stdout) == (255, ["repro: unchanged: one", begins[1]])
    assert line.startswith("repro: two: ended by SIGKILL; ")


@pytest.mark.usefixtures("project")
def test_the_time_of_a_stage_that_failed_is_not_noted(capfd: pytest.CaptureFixture[str]) -> None:
    """With --keep-going. DVC also warns of an empty file: once, though two stages have it."""
    with Path("dvc.yaml").open("a") as stages:
        stages.write("  writer: {cmd: true > empty, outs: [empty]}\n")
        stages.write("  reader: {cmd: echo read > read, deps: [empty], outs: [read]}\n")
    how("two fails")
    status, _, stderr = run(capfd, "--keep-going")
    assert (status, "two: refused" in stderr) == (255, True)
    assert len([line for line in stderr if line.startswith("WARNING:") and "empty" in line]) == 1
    assert in_process.read_notes(in_process.SECONDS).keys() == {"one", "writer", "reader"}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(("stages", "words", "named"), [("stages: 1\n", [], "dvc.yaml"), ("", ["nothing"], "nothing")])
def test_an_error_of_dvc_is_shown(stages: str, words: list[str], named: str, capfd: pytest.CaptureFixture[str]) -> None:
    """With a last line that says how to go on, and DVC's exit status. Questions are refused."""
    if stages:
        Path("dvc.yaml").write_text(stages)
    status, stdout, stderr = run(capfd, *words)
    assert (status, stdout) == (255, [])
    assert named in "\n".join(stderr[:-1])
    assert stderr[-1].startswith("repro: dvc repro: ")
    assert run(capfd, "--no-such-option")[0] == 254
    with refuses(("repro", "value")):
        run(capfd, "--interactive")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("deps: [given]", "deps: ['${zz}']"), ("outs: [one]", "outs: [7]"), ("outs: [one]", "outs: [[a]]"),
        ("deps: [given]", "deps: [two]"), ("[train.lr]", "[params.yaml: 5]"), ("  two:", "  :"),
    ],
)  # fmt: skip
def test_a_dvc_yaml_that_dvc_refuses_has_no_forecast(old: str, new: str) -> None:
    """An unknown variable, an entry of another type, stages in a circle, and a stage without a name."""
    files.write_text(dvc_lock.YAML_FILE, dvc_lock.YAML_FILE.read_text().replace(old, new))
    with refuses(("dvc.yaml", "damaged")):
        forecast.forecast()


@pytest.mark.usefixtures("project")
def test_an_input_that_is_no_file_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    """A pipe, at which the forecast would wait for ever; and what `dvc add` has versioned and is not here."""
    Path("given").unlink()
    os.mkfifo("given")
    with refuses(("given", "damaged")):
        forecast.forecast()
    Path("given").unlink()
    Path("given.dvc").write_text("outs:\n- md5: b9f4c1cc743af7b09673ba380390d2f1\n  hash: md5\n  path: given\n")
    with refuses(("given", "missing")):
        run(capfd)


@pytest.mark.usefixtures("done")
def test_an_error_of_the_system_is_one_line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In DVC: its error and that of the system name each other."""
    monkeypatch.setattr("dvc.stage.Stage.reproduce", Mock(side_effect=OSError(errno.ENOSPC, "full", "a file")))
    with pytest.raises(OSError, match="a file") as error:
        run(capfd)
    assert errors.describe_system_error(error.value).startswith("a file: ")


DATA = {"download", "split", "prepare"}
ALL = {*workspace.STAGES}


@pytest.mark.parametrize(
    ("words", "stages"),
    [
        (["--force"], ALL), (["--pipeline", "split"], ALL), (["prepare", "weights"], DATA | {"weights"}),
        (["--downstream", "split"], ALL - {"download", "weights"}), (["--glob", "sp*"], {"download", "split"}),
        (["-sf", "report"], {"report"}),
    ],
)  # fmt: skip
def test_what_a_run_brings_up_to_date(words: list[str], stages: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As DVC finds it. Only these outputs are checked, and only their figures are shown."""
    monkeypatch.chdir(PROJECT)
    with questions.asked() as repo:
        assert {stage.addressing for stage in in_process.stages(repo, in_process.parse(words))} == stages


# ---- what is written, and what a killed DVC leaves


def test_a_file_of_dvc_is_whole_at_every_moment(done: Path) -> None:
    """If the work ends while dvc.lock is written, it is as before."""

    def cut(_: object, stream: Any) -> None:
        stream.write("stages:")
        raise InterruptedError

    before = Path("dvc.lock").read_bytes()
    with pytest.raises(InterruptedError):
        changed_dvc.dump_data("dvc.lock", {}, cut)
    assert Path("dvc.lock").read_bytes() == before


@pytest.mark.usefixtures("project")
def test_outputs_are_on_the_disk_before_dvc_lock_names_them(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each sync, the outputs and their copies in the cache are there, and dvc.lock does not name them yet."""
    synced: list[tuple[bool, bool]] = []
    stage = iter(("one", "one", "two", "two"))  # the disk of the cache, and that of the project

    def sync(_: Path) -> None:
        if name := next(stage, ""):
            synced.append((Path(name).exists(), dvc_lock.LOCK.exists() and name in dvc_lock.read()))

    monkeypatch.setattr(linux, "sync", sync)
    assert run(capfd)[0] == 0
    assert synced == [(True, False)] * 4


@pytest.mark.usefixtures("project")
def test_a_lock_is_read_and_written_as_by_dvc() -> None:
    """DVC keeps comments in a file that it writes again, which takes seconds; dvc.lock has none: the same bytes."""
    lock, text = Path("dvc.lock"), (PROJECT / "results/demo/dvc.lock").read_text()
    numbers = [1e-5, 1e16, 0.1, 1.0, -0.0, 10**30]
    odd: list[Any] = [*numbers, "1e3", "null", "a: b", "", "ü", "#", "a\nb", "long " * 50, None, True, {}]

    def written(content: Any) -> str:
        dump_yaml(lock, content)
        return lock.read_text()

    assert written(changed_dvc.parse_yaml(text, str(lock))) == text
    for each in (text, written({"odd": odd})):
        ways = (changed_dvc.upstream_parse, changed_dvc.parse_yaml)
        assert [written(parse(each, str(lock), "rt")) for parse in ways] == [each, each]


@pytest.mark.usefixtures("done")
def test_a_cut_lock_is_put_back(capfd: pytest.CaptureFixture[str]) -> None:
    """As `dvc repro` leaves it when it is killed. Without a committed one, DVC's run cache has all that is in it."""
    content = Path("dvc.lock").read_bytes()
    for cut in (b"", b"schema: '2.0'\nstag"):
        Path("dvc.lock").write_bytes(cut)
        _, stdout, (line,) = run(capfd)
        assert line.startswith("repro: dvc.lock was cut ")
        assert stdout == ["repro: taken from DVC's cache: one, two"]
        assert Path("dvc.lock").read_bytes() == content
    commit(Path())
    Path("dvc.lock").write_bytes(content[: len(content) // 2])
    assert run(capfd)[1] == ["repro: unchanged: one, two"]
    assert Path("dvc.lock").read_bytes() == content


@pytest.mark.usefixtures("done")
def test_a_cut_lock_is_noticed_or_states_nothing_by_halves() -> None:
    """A dvc.lock cut at any byte, or any other text, is noticed, or each output that is left is the same as before."""

    def is_accepted(text: str) -> bool:
        dvc_lock.LOCK.write_text(text)
        return not dvc_lock.is_cut()

    lock = dvc_lock.LOCK.read_text()
    assert (is_accepted(lock), is_accepted("a line of text\n")) == (True, False)
    before = YAML(typ="safe", pure=True).load(lock)["stages"]
    accepted = [length for length in range(len(lock)) if is_accepted(lock[:length])]
    assert 0 < len(accepted) < 20
    for length in accepted:
        for stage, row in YAML(typ="safe", pure=True).load(lock[:length])["stages"].items():
            assert all(file in before[stage]["outs"] for file in row.get("outs", [])), lock[:length]


def test_a_lock_has_the_order_of_dvc_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ran first: the stages have their own bytes."""
    lock = (PROJECT / "results/demo/dvc.lock").read_text()
    head, *blocks = re.split(r"(?m)^(?=  \w)", lock)
    assert [block.partition(":")[0].strip() for block in blocks] == [*workspace.STAGES]
    monkeypatch.chdir(tmp_path)
    shutil.copy(PROJECT / "dvc.yaml", tmp_path)
    mixed = head + "".join(blocks[3:] + blocks[:3])
    for text in (mixed, lock):
        dvc_lock.LOCK.write_text(text)
        dvc_lock.put_in_order()
        assert dvc_lock.LOCK.read_text() == lock


SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]


@pytest.mark.parametrize(
    ("program", "place", "after", "is_held"),
    [("dvc", "/", 1, False), ("other", "", 1, False), ("dvc", "", -1, False), ("dvc", "", 1, True)],
)
def test_a_lock_of_a_killed_dvc_holds_nobody(
    done: Path, program: str, place: str, after: float, is_held: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Though another process has its PID, which works elsewhere, is another program, or began later, as in a container.

    A holder that lives is named.
    """
    with ExitStack() as stack:
        other = stack.enter_context(subprocess.Popen([*SLEEP, program], cwd=place or done))
        stack.callback(other.kill)
        holder = {"pid": other.pid, "cmd": "/bin/dvc repro"}
        RWLOCK.write_text(json.dumps({"read": {str(done / "given"): [holder]}, "write": {str(done / "one"): holder}}))
        os.utime(RWLOCK, times=(psutil.Process(other.pid).create_time() + after,) * 2)
        before = RWLOCK.read_bytes()
        if is_held:
            with refuses(("this folder", "busy")) as refused:
                run(capfd)
            assert str(other.pid) in refused.value.faults[0].value
            assert RWLOCK.read_bytes() == before
        else:
            status, stdout, (line,) = run(capfd)
            assert (status, stdout) == (0, ["repro: unchanged: one, two"])
            assert line.startswith(f"repro: {RWLOCK} ")
        assert other.poll() is None


@pytest.mark.usefixtures("done")
def test_locks_that_are_cut_are_removed(capfd: pytest.CaptureFixture[str]) -> None:
    """Any content: nothing fails, and it is said. What a run leaves is no reason to say anything."""
    for content in ("", "null", '{"read": null}', '{"write": {"out": {"pid": "x"}}}', '{"write": {"o', "[" * 100_000):
        RWLOCK.write_text(content)
        status, stdout, (line,) = run(capfd)
        assert (status, stdout) == (0, ["repro: unchanged: one, two"])
        assert line.startswith(f"repro: {RWLOCK} ")
    assert run(capfd) == (0, ["repro: unchanged: one, two"], [])


@pytest.mark.usefixtures("done")
def test_an_empty_folder_in_the_run_cache_is_no_entry(capfd: pytest.CaptureFixture[str]) -> None:
    """A DVC that was killed before it wrote the entry leaves one, at which DVC fails."""
    for entry in Path(".dvc/cache/runs").glob("*/*/*"):
        entry.unlink()
    Path("dvc.lock").unlink()
    assert run(capfd)[:2] == (0, ["one: begins; False, False", "two: begins; False, False"])


@pytest.mark.parametrize(
    ("command", "is_ours"),
    [
        ("python -m pipeline repro", True), ("python -u -m pipeline rank train", True),
        ("srun --nodes=2 python -m pipeline rank train", True), ("nohup python -m pipeline", True),
        ("python -m pipeline.planning.trial question", True), ("/venv/bin/python3 /venv/bin/perennial repro", True),
        ("python -m pipelines", False), ("less /home/me/perennial", False), ("python -m", False), ("python", False),
    ],
)  # fmt: skip
def test_a_process_of_this_program_is_known_by_its_command(command: str, is_ours: bool) -> None:
    """A work copy is removed only when none works in it."""
    assert processes.is_perennial(command.split()) == is_ours


# ---- signals and kills: real starts


def begin(*words: str, **options: Any) -> subprocess.Popen[str]:
    """Start `perennial repro` and wait until its first stage runs."""
    how("one waits")
    command = subprocess.Popen([*REPRO, *words], start_new_session=True, stderr=subprocess.PIPE, text=True, **options)
    wait_for(lambda: Path("began").exists() or command.poll() is not None, "the stage does not begin")
    assert command.poll() is None
    return command


@pytest.mark.parametrize(
    ("number", "words"),
    [
        pytest.param(signal.SIGTERM, ["--keep-going", "two"], id="TERM"),
        pytest.param(signal.SIGINT, [], id="INT", marks=AGAIN),
    ],
)
def test_a_signal_reaches_the_stage_and_it_ends_last(
    project: Path, number: signal.Signals, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """The stage saves, no process stays, and the next run needs no repair. Meanwhile a second run is refused."""
    command = begin(*words)
    with refuses(("this folder", "busy")) as refused:
        run(capfd)
    assert str(command.pid) in refused.value.faults[0].value
    both = [psutil.Process(command.pid), *psutil.Process(command.pid).children(recursive=True)]
    assert len(both) == 2
    command.send_signal(signal.SIGTSTP)
    wait_for(lambda: {process.status() for process in both} == {psutil.STATUS_STOPPED}, "one goes on")
    command.send_signal(signal.SIGCONT)
    wait_for(lambda: psutil.STATUS_STOPPED not in {process.status() for process in both}, "one is stopped")
    both[1].send_signal(signal.SIGSTOP)
    assert command.stderr
    assert f"process {both[1].pid} " in command.stderr.readline()
    command.send_signal(number)
    _, stderr = command.communicate()
    assert (command.returncode, stderr) == (128 + number, "")
    assert Path("saved").read_text() == str(int(number))
    assert working_in(project) == [ME]
    assert not Path("dvc.lock").exists()
    how("")
    assert run(capfd)[::2] == (0, [])


# ---- DVC by a person's own hand


def by_hand(*words: str) -> bytes:
    """The dvc.lock after a command of DVC."""
    subprocess.run([sys.executable, "-m", "dvc", *words], check=True, capture_output=True)
    return Path("dvc.lock").read_bytes()


@pytest.mark.slow("DVC without this program, and an experiment; make test has the changed DVC")
@pytest.mark.usefixtures("project")
def test_dvc_by_hand_gives_the_same_bytes(capfd: pytest.CaptureFixture[str]) -> None:
    """`dvc repro` after a kill of `perennial repro`, which takes the stage along, and `dvc exp run`."""
    command = begin()
    command.kill()
    command.communicate()
    wait_for(lambda: working_in(Path.cwd()) == [ME], "it goes on")
    assert Path("saved").read_text() == str(int(signal.SIGTERM))
    assert not Path("dvc.lock").exists()
    how("")
    lock = by_hand("repro")
    assert run(capfd)[1] == ["repro: unchanged: one, two"]
    commit(Path())
    assert by_hand("exp", "run", "--force") == lock
    assert run(capfd, "--force") == (0, ["one: begins; False, False", "two: begins; False, False"], [])
    assert Path("dvc.lock").read_bytes() == lock


@pytest.mark.nightly("DVC's queue takes half a minute to end; make test-ci has dvc exp run")
@pytest.mark.usefixtures("done")
def test_a_queued_experiment_gives_the_same_bytes(capfd: pytest.CaptureFixture[str]) -> None:
    """DVC runs it in a folder of its own."""
    commit(Path())
    by_hand("exp", "run", "--queue", "--name", "other", "-S", "train.lr=0.25")
    by_hand("exp", "run", "--run-all")
    lock = by_hand("exp", "apply", "other")
    assert read_params(Path("params.yaml"))["train"]["lr"] == 0.25
    assert run(capfd, "--force")[0] == 0
    assert Path("dvc.lock").read_bytes() == lock
