"""An interrupted training goes on from the step before which all processes stopped, to the same bytes."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.running import checkpoint
from tests.conftest import PROJECT, set_params
from tests.helpers.trainings import (
    LONG,
    digests,
    gone,
    launch,
    messages,
    outputs,
    rank_processes,
    small_world,
    start,
    wait_for,
    wait_for_epoch,
)

# With a state of the optimizer and of the average.
TWO: dict[str, Any] = {
    **LONG, "train__parallel": "ddp", "run__processes": 2, "train__optimizer": "adamw", "train__lr": 0.001,
    "train__ema_decay": 0.9, "train__export": "ema",
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run on two processes."""
    folder = small_world(tmp_path_factory.mktemp("whole"), **TWO)
    launch(folder)
    return folder


def strike(folder: Path, target: str, number: signal.Signals, epoch: int = 3, *, saves: bool = True) -> int:
    """Start a run, wait for an epoch, and send a signal. The launcher's exit status, after all processes have ended.

    `saves`: wait for the checkpoint, too, which follows the line of the epoch.
    """
    launcher = start(folder)
    wait_for_epoch(launcher, folder, epoch)
    if saves:
        wait_for(lambda: list(folder.glob("runs/*/checkpoint.pt")), "no checkpoint")
    if target == "group":
        os.killpg(launcher.pid, number)
    elif target == "launcher":
        launcher.send_signal(number)
    else:
        rank_processes(launcher)[int(target[-1])].send_signal(number)
    status = launcher.wait(600)
    wait_for(lambda: gone(folder), "orphans")
    return status


@pytest.fixture(scope="module")
def half_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped in the middle. Tests copy it."""
    folder = small_world(tmp_path_factory.mktemp("stopped"), **TWO)
    assert strike(folder, "launcher", signal.SIGTERM) == 75
    return folder


TORCHRUN, SPAWN = {"run__launcher": "torchrun"}, {"run__launcher": "spawn"}
RESTARTED = {**TORCHRUN, "run__max_restarts": 3}
# What happens to one run, in turn: changed params, who gets a signal, and which.
STRIKES = [
    (TORCHRUN, "rank 1", "KILL"), (RESTARTED, "rank 1", "TERM"), (SPAWN, "rank 0", "INT"),
    (TORCHRUN, "launcher", "USR1"), (SPAWN, "launcher", "KILL"), (TORCHRUN, "group", "KILL"),
]  # fmt: skip
EACH = [("rank 0", "KILL"), *itertools.product(("rank 1", "launcher"), ("TERM", "INT", "USR1", "KILL"))]
# Two runs, because each strike takes an epoch, and a run has sixteen.
OTHERS = [[(lines, *each) for each in EACH if (lines, *each) not in STRIKES] for lines in (TORCHRUN, SPAWN)]
NIGHTLY = pytest.mark.nightly("further pairs of launcher, process and signal; make test has each signal and launcher")
FURTHER = pytest.mark.slow("further trainings of two processes; make test strikes one run in every way")


@pytest.mark.parametrize(
    "strikes",
    [STRIKES, *(pytest.param(strikes, marks=NIGHTLY) for strikes in OTHERS)],
    ids=["each", "torchrun", "spawn"],
)
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    whole: Path, tmp_path: Path, strikes: list[tuple[dict[str, Any], str, str]]
) -> None:
    """Each time the run ends with a non-zero status, leaves no process and no output, and says what happened. A start
    goes on, also after another launcher. At last a bit of the newest checkpoint changes, which is said, and a process
    dies, which run.max_restarts starts again. In the end the run has the bytes of an uninterrupted one.
    """
    folder = small_world(tmp_path, **TWO)
    for epoch, (lines, target, name) in enumerate(strikes, 1):
        changes = {"run__max_restarts": 0, **lines}
        set_params(folder, **changes)
        number, what = signal.Signals[f"SIG{name}"], f"SIG{name} to {target}, {lines}"
        status, words = strike(folder, target, number, epoch), messages(folder)
        assert status != 0, what
        assert not (folder / "models").exists(), what
        assert ("going on from step" in words) == (epoch > 1), what
        if number == signal.SIGKILL and target.startswith("rank"):
            assert re.search(f"process {target[-1]} of 2: .*SIGKILL", words), what
        elif number != signal.SIGKILL:
            assert re.search(r"train: stopped by process \d: SIG\w+; saved at step \d+ of 72", words), what
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
    assert outputs(folder) == outputs(whole)


@pytest.mark.nightly("three starts; make test has kills and stops of a run that saves after every epoch")
def test_a_kill_costs_the_steps_since_the_last_checkpoint_and_a_stop_none(whole: Path, tmp_path: Path) -> None:
    """Without a save at the ends of epochs, a killed run begins anew; after a signal it goes on. No byte differs."""
    folder = small_world(tmp_path, **(TWO | {"run__epoch_checkpoint_seconds": 1_000_000}))
    launcher = start(folder)
    wait_for_epoch(launcher, folder)
    everything = [psutil.Process(launcher.pid), *rank_processes(launcher)]
    for process in everything:
        process.suspend()  # otherwise a process notices that another one is dead, and saves
    for process in everything:
        process.kill()
    wait_for(lambda: gone(folder), "orphans")
    launcher.wait()
    assert not list(folder.glob("runs/*/*checkpoint.pt"))
    assert strike(folder, "rank 0", signal.SIGTERM, saves=False) == 75
    assert "going on from step" not in messages(folder)
    assert [path.name for path in folder.glob("runs/*/*checkpoint.pt")] == ["checkpoint.pt"]
    assert "going on from step" in launch(folder).stderr
    assert outputs(folder) == outputs(whole)


@pytest.mark.nightly("one more training of two processes; the test of the container stops one by docker stop")
def test_a_second_signal_does_not_hurry_a_stop(tmp_path: Path) -> None:
    """`docker stop` sends TERM to the launcher twice: through repro, and when DVC ends. The run saves as after one."""
    folder = small_world(tmp_path, **TWO)
    launcher = start(folder)
    wait_for_epoch(launcher, folder)
    for _ in range(20):  # a second signal can only do harm at short moments
        launcher.send_signal(signal.SIGTERM)
        time.sleep(0.01)
    assert launcher.wait(600) == 75, messages(folder)
    assert "Traceback" not in messages(folder)
    assert list(folder.glob("runs/*/checkpoint.pt"))


def test_a_signal_after_the_processes_have_stopped_is_ignored() -> None:
    """The launcher is about to say how they stopped, and must not end by the signal before it has."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ranks.late_signal"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "still here\n"), done.stderr


@FURTHER
def test_a_stop_during_the_start_is_not_restarted(tmp_path: Path) -> None:
    """Processes that are just starting have nothing to save. run.max_restarts does not start them again."""
    folder = small_world(tmp_path, run__max_restarts=3, **TWO)
    launcher = start(folder)
    wait_for(lambda: len(rank_processes(launcher)) == 2 or launcher.poll() is not None, "no process was started")
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(600) != 0
    assert "launch: restart" not in messages(folder)
    wait_for(lambda: gone(folder), "orphans")


@FURTHER
def test_two_damaged_checkpoints_are_refused(half_run: Path, tmp_path: Path) -> None:
    """Here they are cut short. The refusal says what to remove."""
    folder = shutil.copytree(half_run, tmp_path / "both", symlinks=True)
    for path in folder.glob("runs/*/*checkpoint.pt"):
        path.write_bytes(path.read_bytes()[:1000])
    refused = launch(folder, check=False)
    assert refused.returncode == 1
    assert re.search(r"train: runs/\S+/checkpoint\.pt, runs/.*: damaged", refused.stderr)


@FURTHER
def test_a_resume_on_other_hardware_is_refused(half_run: Path, tmp_path: Path) -> None:
    """The checkpoint records what decides bits. A difference is named."""
    folder = shutil.copytree(half_run, tmp_path / "w", symlinks=True)
    (path,) = folder.glob("runs/*/checkpoint.pt")
    state = checkpoint.load(path)
    checkpoint.save(path, {**state, "hardware": {**state["hardware"], "device": "Another CPU"}})
    refused = launch(folder, check=False)
    assert refused.returncode == 1
    assert f"train: {path.parent.relative_to(folder)}: " in refused.stderr
    assert "'Another CPU'" in refused.stderr


@FURTHER
def test_clean_runs_removes_what_nothing_would_resume(whole: Path, half_run: Path, tmp_path: Path) -> None:
    """Finished and stale folders are removed, and the message says how much that freed. A resumable folder stays."""
    folder = shutil.copytree(half_run, tmp_path / "w", symlinks=True)
    (resumable,) = (folder / "runs").iterdir()
    (folder / "runs/stale").mkdir()
    (folder / "runs/stale/checkpoint.pt").write_bytes(bytes(2_500_000))
    (folder / "runs/stale/fingerprint").write_text("0" * 64)
    clean = [sys.executable, "-m", "pipeline", "clean-runs"]
    done = subprocess.run(clean, cwd=folder, capture_output=True, text=True, check=True)
    assert re.findall(r"[\d.]+", done.stdout.splitlines()[-1]) == ["1", "2.5"]  # folders, MB
    assert list((folder / "runs").iterdir()) == [resumable]
    assert digests(folder, "runs") == digests(half_run, "runs")
    folder = shutil.copytree(whole, tmp_path / "finished", symlinks=True)
    done = subprocess.run(clean, cwd=folder, capture_output=True, text=True, check=True)
    assert re.findall(r"[\d.]+", done.stdout.splitlines()[-1])[0] == "1"
    assert not list((folder / "runs").iterdir())
