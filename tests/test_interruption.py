"""An interrupted training goes on from the step before which all processes stopped, to the same bytes."""

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT, set_params
from tests.helpers.ranks import train
from tests.helpers.trainings import (
    LONG,
    ends,
    fork_ranks,
    gone,
    messages,
    outputs,
    rank_processes,
    small_world,
    start,
    wait_for,
    wait_for_epoch,
)
from tests.test_options import exported_loss, history

pytestmark = pytest.mark.slow(
    "real signals to torchrun and its processes; make test has the battered run of test_pipeline.py"
)

# With a state of the optimizer and of the average.
TWO: dict[str, Any] = {
    **LONG, "train__epochs": 8, "train__parallel": "ddp", "run__processes": 2, "train__optimizer": "adamw",
    "train__lr": 0.001, "train__ema_decay": 0.9, "train__export": "ema",
    "evaluate__batch_size": 4,  # each process validates
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Gives an uninterrupted run on two processes, of so many epochs."""
    return cache(lambda epochs: train(small_world(tmp_path_factory.mktemp("whole"), **TWO | {"train__epochs": epochs})))


def test_all_processes_validate_what_is_exported(whole: Callable[[int], Path]) -> None:
    """The model of process 0: the statistics of BatchNorm differ on each process."""
    folder = whole(TWO["train__epochs"])
    assert exported_loss(folder) == pytest.approx(history(folder, "val_loss")[-1], rel=1e-6)


def strike(folder: Path, target: str, number: signal.Signals, epoch: int) -> int:
    """Start a run, wait for an epoch, and send a signal. The launcher's exit status, after all processes have ended."""
    launcher = start(folder)
    wait_for_epoch(launcher, folder, epoch)
    # It follows the line of the epoch.
    wait_for(lambda: list(folder.glob("runs/*/checkpoint.pt")), "no checkpoint")
    if target == "group":
        os.killpg(launcher.pid, number)
    elif target == "launcher":
        launcher.send_signal(number)
        launcher.send_signal(number)  # as `docker stop` does: through repro, and when DVC ends
    elif target == "frozen ranks":
        for process in rank_processes(launcher):
            process.suspend()
        launcher.send_signal(number)
    else:
        rank_processes(launcher)[int(target[-1])].send_signal(number)
    status = launcher.wait(600)
    wait_for(lambda: gone(folder), "orphans")
    return status


TORCHRUN, SPAWN = {"run__launcher": "torchrun"}, {"run__launcher": "spawn"}
RESTARTED = {**TORCHRUN, "run__max_restarts": 3}
# What happens to one run, in turn: changed params, who gets a signal, and which.
STRIKES = [({**SPAWN, "run__max_restarts": 3}, "launcher", "USR1")]
MORE = [(RESTARTED, "rank 1", "TERM"), (TORCHRUN, "group", "KILL"), (SPAWN, "rank 0", "INT")]
FROZEN = [("rank 0", "STOP"), ("rank 1", "STOP"), ("frozen ranks", "TERM")]
EACH = [("rank 0", "KILL"), *itertools.product(("rank 1", "launcher"), ("TERM", "INT", "USR1", "KILL"))]
# Two runs, because each strike takes an epoch, and a run has twenty.
MANY = 20
OTHERS = [
    [(lines, *each) for each in EACH if (lines, *each) not in STRIKES]
    + [({**lines, "run__timeout_seconds": 20}, *each) for each in FROZEN]
    + more
    for lines, more in ((TORCHRUN, []), (SPAWN, MORE))
]
NIGHTLY = pytest.mark.nightly(
    "further pairs of launcher, process and signal; make test-ci has each signal and launcher"
)


@pytest.mark.parametrize(
    ("strikes", "epochs"),
    [(STRIKES, TWO["train__epochs"]), *(pytest.param(strikes, MANY, marks=NIGHTLY) for strikes in OTHERS)],
    ids=["each", "torchrun", "spawn"],
)
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    whole: Callable[[int], Path], tmp_path: Path, strikes: list[tuple[dict[str, Any], str, str]], epochs: int
) -> None:
    """Each time it leaves no process and no output, and says what happened. A start goes on, with any launcher."""
    folder = small_world(tmp_path, **TWO | {"train__epochs": epochs})
    for epoch, (lines, target, name) in enumerate(strikes, 1):
        changes = {"run__max_restarts": 0, "run__timeout_seconds": 600, **lines}
        set_params(folder, **changes)
        number, what = signal.Signals[f"SIG{name}"], f"SIG{name} to {target}, {lines}"
        status, words = strike(folder, target, number, epoch), messages(folder)
        assert status != 0, what
        assert not (folder / "models").exists(), what
        assert ("going on from step" in words) == (epoch > 1), what
        if number == signal.SIGSTOP:
            silent = rf"process {target[-1]} of 2 \(pid \d+\).* (was silent for|was stopped).*\(state T\)"
            assert re.search(silent, words), what
        elif number == signal.SIGKILL and target.startswith("rank"):
            assert re.search(f"process {target[-1]} of 2: .*SIGKILL", words), what
        elif number != signal.SIGKILL:
            assert re.search(r"train: stopped by process \d: SIG\w+; saved at step \d+ of \d+", words), what
            # Process 0 says so at once, if the signal reaches it.
            assert words.count("train: stopping after this step") == (target != "rank 1"), what
            assert status == 75, what
        assert "launch: restart" not in words, what
        assert "Traceback" not in words, what
    (newest,) = folder.glob("runs/*/checkpoint.pt")
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    set_params(folder, **RESTARTED)
    assert strike(folder, "rank 1", signal.SIGKILL, len(strikes) + 1) == 0
    words = messages(folder)
    assert f"{newest.relative_to(folder)} " in words
    assert re.search(r"going on from step \d+", words)
    assert "launch: restart 1 of 3" in words
    assert re.search("process 1 of 2: .*SIGKILL", words)
    assert outputs(folder) == outputs(whole(epochs))


LATE_SIGNAL = """
import os, signal, subprocess
from pipeline.running.launchers import supervise
with subprocess.Popen(["sleep", "1000"]) as process:
    pids = {"process 0 of 1": process.pid}
    with supervise(lambda: pids, timeout_seconds=600):
        os.kill(os.getpid(), signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
        pids.clear()
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
print("still here")
"""


def test_a_signal_after_the_processes_have_stopped_is_ignored() -> None:
    """The launcher is about to say how they stopped, and must not end by the signal before it has."""
    done = subprocess.run([sys.executable, "-c", LATE_SIGNAL], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "still here\n"), done.stderr


def test_a_process_whose_launcher_has_ended_does_not_begin(tmp_path: Path) -> None:
    """The launcher can end before its process asks the kernel to end with it. Nobody would know of this process."""
    folder = small_world(tmp_path)
    assert ends(fork_ranks(folder, PERENNIAL_PARENT="1")) == [1]
    assert [path.name for path in folder.glob("runs/*/*")] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_end_during_the_start_is_not_restarted(tmp_path: Path, number: signal.Signals) -> None:
    """A process that is just starting has nothing to save. run.max_restarts does not start it again; no process stays.

    A kill of the launcher leaves no process, too.
    """
    folder = small_world(tmp_path, run__max_restarts=3)
    launcher = start(folder)
    wait_for(lambda: rank_processes(launcher) or launcher.poll() is not None, "no process was started")
    launcher.send_signal(number)
    assert launcher.wait(600) != 0
    assert "launch: restart" not in messages(folder)
    wait_for(lambda: gone(folder), "orphans")
    assert not (folder / "models").exists()  # a process that stays trains to its end
