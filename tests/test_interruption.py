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
from tests.conftest import PROJECT
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


FOUR_SIGNALS = ("TERM", "INT", "USR1", "KILL")
OTHERS = pytest.mark.nightly("the same with other signals; make test-ci has each of them with torchrun")
FURTHER = pytest.mark.slow("further trainings of two processes; make test kills one, stops a launcher, and goes on")


@pytest.mark.parametrize(
    ("launcher", "strikes"),
    [
        pytest.param("spawn", [("rank 1", "KILL"), ("launcher", "TERM")], id="spawn"),
        pytest.param("spawn", [("rank 1", "TERM"), ("launcher", "KILL")], id="spawn-others", marks=OTHERS),
        pytest.param(
            "torchrun", [*itertools.product(["rank 1"], FOUR_SIGNALS), ("rank 0", "KILL")],
            id="torchrun-ranks", marks=FURTHER,
        ),
        pytest.param(
            "torchrun", [*itertools.product(["launcher"], FOUR_SIGNALS), ("group", "KILL")],
            id="torchrun-launcher", marks=FURTHER,
        ),
    ],
)  # fmt: skip
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    whole: Path, tmp_path: Path, launcher: str, strikes: list[tuple[str, str]]
) -> None:
    """Each epoch, a signal goes to a process. Each time the run ends with a non-zero status, leaves no process and no
    output, answers at once, and says what happened. A start goes on. In the end the run has the bytes of
    an uninterrupted one.
    """
    folder = small_world(tmp_path, run__launcher=launcher, **TWO)
    for epoch, (target, name) in enumerate(strikes, 1):
        number, what = signal.Signals[f"SIG{name}"], f"SIG{name} to {target}"
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
        assert "Traceback" not in words, what
    again = launch(folder)
    assert re.search(r"going on from step \d+", again.stderr)
    assert outputs(folder) == outputs(whole)


@pytest.mark.slow("three starts; make test has kills and stops of a run that saves after every epoch")
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


@FURTHER
def test_stops_are_not_restarted_and_deaths_are(whole: Path, tmp_path: Path) -> None:
    """With run.max_restarts, a killed process restarts all processes from the last save. A request to stop does not."""
    folder = small_world(tmp_path / "stop", run__max_restarts=3, **TWO)
    assert strike(folder, "rank 1", signal.SIGTERM) == 75
    assert "launch: restart" not in messages(folder)
    folder = small_world(tmp_path / "death", run__max_restarts=3, **TWO)
    assert strike(folder, "rank 1", signal.SIGKILL) == 0
    assert "launch: restart 1 of 3" in messages(folder)
    assert outputs(folder) == outputs(whole)


@FURTHER
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
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(
    whole: Path, half_run: Path, tmp_path: Path
) -> None:
    """One bit of a checkpoint is changed. If both are damaged, here cut short, a refusal says what to remove."""
    folder = shutil.copytree(half_run, tmp_path / "changed", symlinks=True)
    (path,) = folder.glob("runs/*/checkpoint.pt")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    again = launch(folder)
    assert f"{path.relative_to(folder)} " in again.stderr
    assert outputs(folder) == outputs(whole)
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
