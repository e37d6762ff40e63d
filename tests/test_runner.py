"""Stages in work copies: how many run at once, what each may use, and what becomes of them at a failure or a signal."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.base import locks
from pipeline.base.errors import STOPPED
from pipeline.checks import machine
from pipeline.config import params
from pipeline.studies import runner
from pipeline.versioning import run_cache
from tests.conftest import PROJECT, on_cpu
from tests.helpers.choices import TWO_GPUS
from tests.helpers.refusals import refuses
from tests.helpers.trainings import wait_for

# In a job's folder it runs instead of DVC: PYTHONPATH names that folder. Its arguments are those of `dvc repro`.
STAND_IN = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
what, top = sys.argv[-1], Path("..")

def wait_for(condition):
    while not condition():
        time.sleep(0.02)

def save(*_):
    Path("asked").touch()
    wait_for(lambda: (top / "may save").exists())
    Path("saved").touch()
    sys.exit(75)

if what == "pair":  # ends when two of this kind have begun
    Path("begun").touch()
    begun = time.monotonic()
    wait_for(lambda: len([*top.glob("*/begun")]) > 1)
    time.sleep(0.2)
    facts = {"cores": sorted(os.sched_getaffinity(0)), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
    Path("said.json").write_text(json.dumps(facts | {"begun": begun, "ended": time.monotonic()}))
elif what == "long":
    signal.signal(signal.SIGTERM, save)
    Path("runs").touch()
    time.sleep(1000)
elif what == "dies":  # and its child, which saves, does not
    subprocess.Popen(["setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "dvc", "long"])
    wait_for(Path("runs").exists)
    os.kill(os.getpid(), signal.SIGKILL)
elif what == "fails":
    wait_for((top / "long/runs").exists)
    sys.exit("first\\n\\nlast")
elif what == "epochs":
    print("epoch 2/9: loss 1.5\\nepoch 3/9: loss 1.2\\nsomething else\\nepoch 4/", end="", flush=True)
    wait_for((top / "may go on").exists)
    print("9: loss 1.1", flush=True)
elif what == "full":
    sys.exit(OSError(28, os.strerror(28)))
"""
PROGRAM = """
import json, sys
from pathlib import Path
from pipeline.base.errors import exit_status
from pipeline.studies import runner
from pipeline.studies.runner import Job, Slot
places = [Slot(frozenset(cores), tuple(gpus)) for cores, gpus in json.loads(sys.argv[1])]
jobs = [Job(name, Path(name), (what,)) for name, what in json.loads(sys.argv[2])]
runner.MESSAGE_SECONDS = runner.MIN_REST_SECONDS = 0
runner.stop_on_signals("run again to go on")
def work():
    print([(job.name, [(one.key, one.kind) for one in faults]) for job, faults in runner.run_all(jobs, places, "test")]
        if sys.argv[3] == "all" else runner.run_or_raise(jobs, places, "test"))
    return 0
sys.exit(exit_status("test", work))
"""
ANYWHERE: list[tuple[list[int], list[str]]] = [(sorted(os.sched_getaffinity(0)), [])]


def start(
    top: Path, work: dict[str, str], places: Any = ANYWHERE, until: str = "well", hangup: Any = signal.SIG_DFL
) -> subprocess.Popen[str]:
    """A process that runs these jobs: name → what the stand-in does."""
    for name in work:
        (top / name / "dvc/stage").mkdir(parents=True)
        (top / name / "dvc/__init__.py").touch()
        (top / name / "dvc/__main__.py").write_text(STAND_IN)
        (top / name / "dvc/cli.py").write_text("def main(_):\n    import dvc.__main__\n")
        (top / name / "dvc/stage/cache.py").write_text("class StageCache:\n    _load = _load_cache = save = None\n")
    command = [sys.executable, "-c", PROGRAM, json.dumps(places), json.dumps([*work.items()]), until]
    environ = {**os.environ, "PYTHONPATH": f"{PROJECT}{os.pathsep}."}
    return subprocess.Popen(
        command, cwd=top, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),  # noqa: PLW1509  (nohup may run the tests)
    )  # fmt: skip


def test_each_has_its_cores_and_gpus_and_no_more_run_at_once_than_there_are_slots(tmp_path: Path) -> None:
    """Nor fewer, while jobs wait: each of these ends only when two have begun."""
    first, *_, last = sorted(os.sched_getaffinity(0))
    names = ("a", "b", "c", "d")
    process = start(tmp_path, dict.fromkeys(names, "pair"), [([first], ["3", "4"]), ([last], ["5", "6"])])
    _, error = process.communicate()
    assert process.returncode == 0, error
    facts = [json.loads((tmp_path / name / "said.json").read_text()) for name in names]
    slots = {(tuple(one["cores"]), one["gpus"]) for one in facts}
    assert slots == {((first,), "3,4"), ((last,), "5,6")}
    for one in facts:
        assert sum(other["begun"] <= one["begun"] < other["ended"] for other in facts) <= 2


def test_a_failed_run_is_yielded_with_its_fault_and_the_others_go_on(tmp_path: Path) -> None:
    """Other than by `run_or_raise`."""
    work = {"bad": "full", "good": "pair", "other": "pair"}
    process = start(tmp_path, work, ANYWHERE * 3, "all")
    stdout, error = process.communicate()
    assert process.returncode == 0, error
    ends = dict(ast.literal_eval(stdout.splitlines()[-1]))
    assert ends == {"bad": [("bad", "failed")], "good": [], "other": []}
    assert re.search(r"done \(2 of 3\); about \d+ min to go\n", stdout)


def test_a_failure_ends_the_others_which_save_their_state(tmp_path: Path) -> None:
    """The command ends when the last one has saved; what waits is not begun. The message has the log."""
    (tmp_path / "may save").touch()
    process = start(tmp_path, {"long": "long", "bad": "fails", "later": "long"}, ANYWHERE * 2)
    _, error = process.communicate()
    assert process.returncode == 1
    assert error.startswith("test: bad: ")
    assert "first | last" in error
    assert f"bad/{runner.LOG}" in error
    assert (tmp_path / "long/saved").exists()
    assert not (tmp_path / "later/runs").exists()


def test_what_a_killed_dvc_leaves_has_saved_when_the_command_ends(tmp_path: Path) -> None:
    """DVC is killed; its stage is not, and saves after that."""
    process = start(tmp_path, {"killed": "dies"})
    wait_for(lambda: (tmp_path / "killed/asked").exists() or process.poll() is not None, "the stage was not asked")
    assert process.poll() is None
    (tmp_path / "may save").touch()
    _, error = process.communicate()
    assert process.returncode == 1
    assert "SIGKILL" in error
    assert (tmp_path / "killed/saved").exists()


@pytest.mark.parametrize(
    ("number", "work", "hangup"),
    [
        (signal.SIGTERM, {"long": "long", "two": "long"}, signal.SIG_IGN),
        (signal.SIGHUP, {"long": "long"}, signal.SIG_DFL),
        # it comes while the end of a failure is waited for
        (signal.SIGINT, {"long": "long", "bad": "fails"}, signal.SIG_DFL),
    ],
)
def test_a_second_signal_changes_nothing(
    number: signal.Signals, work: dict[str, str], hangup: signal.Handlers, tmp_path: Path
) -> None:
    """The first one asks the runs to end. Ctrl-C while they save is not heard: exit status 75, and all is saved. Under
    nohup, a command goes on when its terminal closes."""
    process = start(tmp_path, work, ANYWHERE * 2, hangup=hangup)
    runs = [tmp_path / name for name, what in work.items() if what == "long"]
    wait_for(lambda: all((run / "runs").exists() for run in runs) or process.poll() is not None, "nothing runs")
    if hangup == signal.SIG_IGN:
        process.send_signal(signal.SIGHUP)
    if "bad" not in work:
        process.send_signal(number)
    wait_for(lambda: all((run / "asked").exists() for run in runs) or process.poll() is not None, "not asked")
    process.send_signal(signal.SIGINT)
    process.send_signal(number)
    assert process.poll() is None
    (tmp_path / "may save").touch()
    _, error = process.communicate()
    assert (process.returncode, error) == (STOPPED, f"test: stopped by {number.name}; run again to go on\n")
    assert all((run / "saved").exists() for run in runs)


def test_the_newest_line_of_progress_is_printed(tmp_path: Path) -> None:
    """With the name of the job; not the lines of the start before, no line that is not complete, each line once."""
    name = "seed 0, fold 1"
    (tmp_path / name).mkdir()
    (tmp_path / name / runner.LOG).write_text("epoch 1/9: of the start before\n")
    with start(tmp_path, {name: "epochs"}, until="all") as process:
        assert process.stdout
        first = process.stdout.readline()
        time.sleep(3 * runner.POLL_SECONDS)  # in which nothing new is complete
        (tmp_path / "may go on").touch()
        second, third = process.stdout.readlines()[:2]
    assert first == f"test: {name}: epoch 3/9: loss 1.2\n"
    assert second == f"test: {name}: epoch 4/9: loss 1.1\n"
    assert third.startswith(f"test: {name}: done")


# ---- what each may use


def test_the_cores_are_divided_among_the_runs(raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its share. Where there are fewer cores than runs, some share one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 4, 5, 7})
    config = params.parse(on_cpu(raw))
    shares = [set(slot.cores) for slot in runner.slots(config, 2)]
    assert set.union(*shares) == {1, 2, 4, 5, 7}
    assert sorted(map(len, shares)) == [2, 3]
    assert [len(slot.cores) for slot in runner.slots(config, 6)] == [1] * 6
    assert all(slot.gpus == () for slot in runner.slots(config, 6))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, ["0,1", "2,3"]), ("7,5,3,1,0", ["7,5", "3,1"]), ("GPU-a,GPU-b,2,3,9,none", ["GPU-a,GPU-b", "2,3"])],
)
def test_the_gpus_are_divided_among_the_runs(
    visible: str | None, expected: list[str], raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run has as many as it has processes, of those that are visible here; too many runs are refused."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(machine, "read", lambda: replace(TWO_GPUS, cuda_devices=5))
    raw["train"] |= {"device": "cuda", "parallel": "ddp"}
    raw["run"]["processes"] = 2
    config = params.parse(raw)
    assert [",".join(slot.gpus) for slot in runner.slots(config, 2)] == expected
    assert runner.slots(config, 1)[0].gpus == ()
    with refuses(("--jobs", "machine")):
        runner.slots(config, 3)


def test_two_dvcs_can_use_one_run_cache_at_the_same_time(tmp_path: Path) -> None:
    """While one of them writes an entry, the other one waits, and finds it. DVC alone removes what is half written."""
    for name in ("first", "second"):
        (tmp_path / name / ".dvc").mkdir(parents=True)
        (tmp_path / name / ".dvc/config").write_text("[core]\n    no_scm = true\n[cache]\n    dir = ../../cache\n")
        (tmp_path / name / "dvc.yaml").write_text("stages: {only: {cmd: date +%N >out, deps: [dep], outs: [out]}}\n")
        (tmp_path / name / "dep").touch()

    def repro(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-P", run_cache.__file__, "dvc", "repro"], cwd=tmp_path / name)

    assert repro("first").wait() == 0
    runs = tmp_path / "cache/runs"
    (entry,) = (path for path in runs.rglob("*") if path.is_file())
    half = entry.with_name(".half.tmp")
    content = entry.read_bytes()
    with locks.exclusive(runs):
        entry.unlink()
        half.write_bytes(b"")
        second = repro("second")
        wait_for(lambda: second.poll() is not None or f"-> FLOCK  ADVISORY  WRITE {second.pid} " in
                 Path("/proc/locks").read_text(), "the second one does not wait")  # fmt: skip
        half.write_bytes(content)
        half.rename(entry)
    assert second.wait() == 0
    assert (tmp_path / "second/out").read_bytes() == (tmp_path / "first/out").read_bytes()
