"""A run with a process that does nothing any more ends within its timeout, and names the silent process."""

import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import params
from pipeline.running import launchers
from pipeline.running.exits import ENDED_NOTE, FAILED
from pipeline.running.group import run_process
from pipeline.running.watchdog import Watch, has_ended, is_stopped
from tests.conftest import on_cpu
from tests.helpers.nodes import TRAIN, nodes
from tests.helpers.nodes import start as start_node
from tests.helpers.refusals import refuses
from tests.helpers.trainings import (
    LONG,
    gone,
    launch,
    messages,
    rank_processes,
    small_world,
    start,
    wait_for,
    wait_for_epoch,
)


@pytest.mark.nightly("a frozen evaluation is waited for; make test has who is silent, and the order of exits")
def test_a_frozen_process_that_is_alone_is_named(tmp_path: Path) -> None:
    """Also of an evaluation. No process and no output is left. test_interruption.py freezes one of two, and both."""
    folder = small_world(tmp_path / "frozen", run__timeout_seconds=20)
    launch(folder)
    launcher = start(folder, "evaluate")
    wait_for(lambda: launcher.poll() is not None or rank_processes(launcher), "no process")
    rank_processes(launcher)[0].suspend()
    status, words = launcher.wait(), messages(folder)
    assert re.search(r"process 0 of 1 \(pid \d+\).* (was silent for|was stopped).*\(state T\)", words), words
    assert (status, gone(folder), (folder / "metrics/eval.json").exists()) == (1, True, False)


@pytest.mark.nightly("a training of two processes; make test has the order of exits")
def test_the_process_that_ended_first_is_named(tmp_path: Path) -> None:
    """Process 1 is killed while the launcher is stopped. So the launcher sees the exit of process 0 first."""
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
            watch = Watch(lambda pid=process.pid: {"srun": pid}, 1000, saves=False)  # type: ignore[misc]
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
@pytest.mark.parametrize(
    "launcher",
    ["torchrun", pytest.param("spawn", marks=pytest.mark.nightly("the same for the other launcher of several nodes"))],
)
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
