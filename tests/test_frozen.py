"""A process that does nothing any more is noticed: the run ends within its timeout, with the name of who was silent."""

import re
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks import frozen
from pipeline import launch, params
from pipeline.engine.frozen import Watch
from pipeline.engine.world import ENDED_NOTE
from tests.conftest import on_cpu
from tests.test_interruption import LONG, gone, ranks, said, start, wait_for
from tests.test_nodes import nodes
from tests.test_nodes import start as start_node
from tests.test_train import small_world

TIMEOUT = 30
TRAIN = [sys.executable, "-m", "pipeline.launch", "train"]
# The others are cases of `python -m benchmarks.frozen`.
TRIED = {"torchrun, process 0": 1, "spawn, the launcher": 75, "one process, then TERM": 75}


def test_a_frozen_process_is_named_and_the_run_goes_on(tmp_path: Path) -> None:
    """Stopped by SIGSTOP: process 0, which all others need; the launcher; the only process, which is asked to stop.

    The waits are sleep, so the cases run at the same time. What was saved is what a resume needs.
    """
    cases = {case: TRIED[case.name] for case in frozen.CASES if case.name in TRIED}
    assert len(cases) == len(TRIED)
    lines = {**LONG, "run__timeout_seconds": TIMEOUT, "train__epochs": 4000}
    folders = []
    for number, case in enumerate(cases):
        own: dict[str, Any] = {"run__launcher": "spawn"} if "spawn" in case.params else {}
        if "one" not in case.params:
            own |= {"train__parallel": "ddp", "run__processes": 2}
        folders.append(small_world(tmp_path / str(number), **lines, **own))
    with ThreadPoolExecutor() as pool:
        ends = list(pool.map(lambda folder, case: frozen.strike(folder, case, TRAIN, 600), folders, cases))
    for folder, (case, wanted), (status, _, words) in zip(folders, cases.items(), ends, strict=True):
        assert re.search(case.said, words), words
        assert status == wanted, words
        assert "Traceback" not in words
        assert not (folder / "models").exists()
        assert status == 1 or list(folder.glob("runs/*/checkpoint.pt"))
        assert gone(folder)


def test_the_process_that_ended_first_is_named(tmp_path: Path) -> None:
    """Process 1 is killed while the launcher is stopped, so that process 0, which leaves for that, is seen first."""
    lines = {**LONG, "train__epochs": 4000, "run__timeout_seconds": 300}
    folder = small_world(tmp_path, train__parallel="ddp", run__processes=2, run__launcher="spawn", **lines)
    launcher = start(folder)
    wait_for(lambda: "epoch 1/" in said(folder) or launcher.poll() is not None, "no first epoch")
    _, killed = ranks(launcher)
    launcher.send_signal(signal.SIGSTOP)
    killed.kill()
    assert launcher.wait(600) == 1  # it goes on, for the process that leaves makes it
    assert "train: process 1 of 2 ended with signal SIGKILL; see above" in said(folder)
    assert re.search(r"train: process 1 of 2 \(pid \d+\) on \S+ ended; process 0 leaves too", said(folder))


@pytest.mark.parametrize("codes", [{0: 76, 1: -9}, {1: -9, 0: 76}, {0: 1, 1: -9}], ids=str)
def test_the_order_of_exits_names_nobody(
    codes: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: dict[str, Any]
) -> None:
    """What the processes saw does: also where the one that was left by its peer failed by itself, a moment later."""
    monkeypatch.setenv(ENDED_NOTE, str(tmp_path / "ended"))
    (tmp_path / "ended").write_text("1")
    run = params.parse(on_cpu(raw, run__processes=2)).run
    watch = Watch(dict, 1)
    watch.close()
    assert launch._first_to_end(codes, watch, run) == "process 1 of 2 ended with signal SIGKILL; see above"


def test_a_silent_listener_at_the_rendezvous_ends_the_launcher(tmp_path: Path) -> None:
    """A port where something listens and never answers: a word at once, and an end in time that names it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        where = f"127.0.0.1:{listener.getsockname()[1]}"
        _, second = nodes(tmp_path, run__rendezvous=where, run__timeout_seconds=5)
        node = start_node(second, TRAIN)
        words = node.communicate()[1].splitlines()
    assert node.returncode == 1
    assert words[0] == f"launch: node 1 of 2 waits for the others at {where} (run.rendezvous), 5 s at most"
    assert words[1].startswith(f"launch: run.rendezvous: '{where}': the nodes did not meet there within 5 s")
