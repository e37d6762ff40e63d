"""A run with a process that does nothing any more ends within its timeout, and names the silent process."""

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.harness import workspace
from pipeline.config import params
from pipeline.running import launchers
from pipeline.running import watchdog as frozen_processes
from pipeline.running.exits import ENDED_NOTE, FAILED
from pipeline.running.group import run_process
from pipeline.running.watchdog import Inactivity, Watch, has_ended, is_stopped
from tests.conftest import on_cpu
from tests.helpers.nodes import TRAIN, nodes
from tests.helpers.nodes import start as start_node
from tests.helpers.refusals import refuses
from tests.helpers.trainings import (
    LONG,
    digests,
    gone,
    messages,
    rank_processes,
    small_world,
    start,
    wait_for,
    wait_for_epoch,
)

PROCESSES: dict[int, dict[str, Any]] = {
    1: {"train__parallel": "single"},
    2: {"train__parallel": "ddp", "run__processes": 2},
}


@dataclass(frozen=True)
class Case:
    """The ranks that SIGSTOP stops, whether the launcher is then asked to stop, and how the stage is started."""

    ranks: tuple[int, ...]
    processes: int = 2
    launcher: str = "torchrun"
    is_asked_to_stop: bool = False
    stage: str = "train"


SILENT = r"process {} of {} \(pid \d+\).* (was silent for|was stopped).*\(state T\)"
SAVED = r"train: stopped by process \d: SIGTERM;.*saved at step \d+ of 72; run again to go on"
CASES = [Case((0,)), Case((0,), processes=1, is_asked_to_stop=True)]
FURTHER = [
    Case((1,)), Case((0,), launcher="spawn"), Case((1,), launcher="spawn"), Case((0,), processes=1), Case((0, 1)),
    Case((0, 1), is_asked_to_stop=True), Case((0,), stage="evaluate"),
]  # fmt: skip


def freeze(folder: Path, case: Case) -> int:
    """Start a stage, and stop processes after the first epoch (evaluate: at their start). Returns the exit status."""
    launcher = start(folder, case.stage)

    def works() -> bool:
        is_there = case.stage == "evaluate" or "epoch 1/" in messages(folder)
        return is_there and len(rank_processes(launcher)) == case.processes

    wait_for(lambda: launcher.poll() is not None or works(), "no epoch")
    assert launcher.poll() is None, messages(folder)
    for rank in case.ranks:
        rank_processes(launcher)[rank].suspend()
    if case.is_asked_to_stop:
        launcher.send_signal(signal.SIGTERM)
    return launcher.wait()


@pytest.mark.nightly("frozen trainings are waited for, a minute; make test has who is silent, and the order of exits")
@pytest.mark.parametrize(
    "cases", [CASES, pytest.param(FURTHER, marks=pytest.mark.nightly("seven further cases of the same"))], ids=len
)
def test_a_frozen_process_is_named_and_the_run_goes_on(tmp_path: Path, cases: list[Case]) -> None:
    """No process and no model is left, and the next start writes the bytes of a run that nobody has disturbed.

    The cases mostly sleep, so they run at the same time.
    """
    lines: dict[str, Any] = {**LONG, "run__timeout_seconds": 20}
    straight = dict[int, Path]()
    for count in {case.processes for case in cases}:
        straight[count] = small_world(tmp_path / f"{count}", **lines, **PROCESSES[count])
        for stage in ("train", "evaluate"):
            workspace.run_stage(straight[count], stage)
    folders = []
    for number, case in enumerate(cases):
        parallel = {**PROCESSES[case.processes], "run__launcher": case.launcher}
        folders.append(small_world(tmp_path / f"case{number}", **lines, **parallel))
        if case.stage == "evaluate":
            shutil.copytree(straight[case.processes] / "models", folders[-1] / "models")
    with ThreadPoolExecutor() as pool:
        statuses = list(pool.map(freeze, folders, cases))
    for folder, case, status in zip(folders, cases, statuses, strict=True):
        words = messages(folder)
        assert all(re.search(SILENT.format(rank, case.processes), words) for rank in case.ranks), words
        assert status == (75 if case.is_asked_to_stop else 1), words
        assert not case.is_asked_to_stop or re.search(SAVED, words), words
        assert "Traceback" not in words
        assert gone(folder)
        assert not (folder / ("metrics" if case.stage == "evaluate" else "models")).exists()
        workspace.run_stage(folder, case.stage)
        written, expected = (digests(one, "models", "metrics") for one in (folder, straight[case.processes]))
        assert written.items() <= expected.items()
        assert len(written) > 4


@pytest.mark.slow("a training of two processes; make test has the order of exits")
def test_the_process_that_ended_first_is_named(tmp_path: Path) -> None:
    """Process 1 is killed while the launcher is stopped. So the launcher sees the exit of process 0 first.

    Before that, Ctrl-Z stops the launcher and its processes together, and they go on together.
    """
    lines = {**LONG, "train__epochs": 4000, "run__timeout_seconds": 300}
    folder = small_world(tmp_path, train__parallel="ddp", run__processes=2, run__launcher="spawn", **lines)
    launcher = start(folder)
    wait_for_epoch(launcher, folder)
    pids = [launcher.pid, *(process.pid for process in rank_processes(launcher))]
    launcher.send_signal(signal.SIGTSTP)
    wait_for(lambda: all(is_stopped(pid) for pid in pids), "not all are stopped")
    launcher.send_signal(signal.SIGCONT)
    wait_for(lambda: not any(is_stopped(pid) for pid in pids), "not all go on")
    _, rank = rank_processes(launcher)
    launcher.send_signal(signal.SIGSTOP)
    rank.kill()
    wait_for(lambda: all(has_ended(pid) for pid in pids[1:]), "process 0 has not left")
    launcher.send_signal(signal.SIGCONT)
    assert launcher.wait(600) == 1
    assert re.search("train: process 1 of 2: .*SIGKILL", messages(folder))
    assert re.search(r"process 0 leaves: process 1 of 2 \(pid \d+\) on \S+ ended or was silent ", messages(folder))


@pytest.mark.parametrize("codes", [{0: 76, 1: -9}, {1: -9, 0: 76}, {0: 1, 1: -9}], ids=str)
def test_the_order_of_exits_names_nobody(
    codes: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: dict[str, Any]
) -> None:
    """The note of the processes names the first one, even if another one fails by itself a moment later."""
    monkeypatch.setenv(ENDED_NOTE, str(tmp_path / "ended"))
    (tmp_path / "ended").write_text("1")
    run = params.parse(on_cpu(raw, run__processes=2)).run
    watch = Watch(dict, 1)
    watch.close()
    assert [fault.key for fault in launchers.first_to_end(codes, watch, run)] == ["process 1 of 2"]


@pytest.mark.parametrize("note", ["ended", f"ended{FAILED}"])
def test_srun_is_not_waited_for_after_a_failure(note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An srun that goes on after a process has noted its failure is killed. Without a note it is waited for."""
    monkeypatch.setenv(ENDED_NOTE, str(tmp_path / "ended"))
    monkeypatch.setattr(launchers, "SRUN_SECONDS", 1)
    seconds = {1.5: 0, 1000: -signal.SIGKILL}
    for duration, status in seconds.items():
        with subprocess.Popen(["sleep", str(duration)]) as process:
            watch = Watch(lambda pid=process.pid: {"srun": pid}, 1000, waits=False)  # type: ignore[misc]
            if status:
                (tmp_path / note).touch()
                with refuses((f"srun (pid {process.pid})", "failed")) as error:
                    launchers._wait_for_srun(process, watch)
                assert isinstance(error.value, launchers.NodeLost)
            else:
                assert launchers._wait_for_srun(process, watch) == 0
            watch.close()
        assert process.returncode == status


@pytest.mark.parametrize("status", [0, 1])
def test_a_process_notes_that_it_failed(status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose work fails leaves a note for its launcher, beside that of the processes that leave with it."""
    monkeypatch.setenv(ENDED_NOTE, str(tmp_path / "ended"))
    assert run_process(lambda: status) == status
    assert [path.name for path in tmp_path.iterdir()] == [f"ended{FAILED}"] * status


@pytest.mark.slow("waits for a rendezvous that cannot be; make test has who is silent")
@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_silent_listener_at_the_rendezvous_ends_the_launcher(tmp_path: Path, launcher: str) -> None:
    """A program listens at the port and never answers: a message at once, and an end in time that names the address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        _, second = nodes(tmp_path, run__launcher=launcher, run__rendezvous=address, run__timeout_seconds=5)
        node = start_node(second, TRAIN)
        words = node.communicate()[1].splitlines()
    assert node.returncode == 1
    assert words[0] == f"launch: node 1 of 2 waits for the others at {address} (run.rendezvous), 5 s at most"
    assert words[1].startswith(f"launch: run.rendezvous: {address}: ")


def test_who_works_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that computes, or whose child computes, is left alone. A process that only waits is counted at every
    check, and killed by the launcher's watch after its time."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
    computing = "import time\nwhile True: time.sleep(0.1), sum(range(10**6))"
    waiting = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {computing!r}])"
    commands = (sleeper, *([sys.executable, "-c", code] for code in (computing, waiting)))
    processes = [subprocess.Popen(command) for command in commands]
    try:
        wait_for(lambda: psutil.Process(processes[2].pid).children(), "no child")
        inactivities = [Inactivity(process.pid) for process in processes]
        most = [0, 0, 0]
        while most[0] < 4:
            time.sleep(1)
            for number, inactivity in enumerate(inactivities):
                inactivity.check_activity()
                most[number] = max(most[number], inactivity.idle_checks)
        assert max(most[1:]) < 3, most
        monkeypatch.setattr(frozen_processes, "MARGIN_SECONDS", 1)
        watch = Watch(lambda: {"a": processes[0].pid}, 1)
        assert processes[0].wait() == -signal.SIGKILL
        watch.close()
        assert watch.faults["a"].key == f"a (pid {processes[0].pid})"
    finally:
        for process in processes:
            for child in psutil.Process(process.pid).children() if process.poll() is None else []:
                child.kill()
            process.kill()
            process.wait()
