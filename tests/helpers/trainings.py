"""Trainings as processes of their own, to be watched and interrupted."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

# 108 steps: long enough to be hit in the middle. A kill loses at most one epoch.
LONG: dict[str, Any] = {"train__epochs": 24, "run__log_steps": 2, "run__epoch_checkpoint_seconds": 0}


def start(folder: Path) -> subprocess.Popen[str]:
    """`python -m pipeline.launch train` in a session of its own. Its messages go to a file (see `messages`)."""
    with (folder / "said").open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.launch", "train"],
            cwd=folder, stderr=file, text=True, start_new_session=True,
        )  # fmt: skip


def messages(folder: Path) -> str:
    """What the training in a folder has written to standard error."""
    return (folder / "said").read_text()


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds. Fails with `what` after ten minutes."""
    for _ in range(60_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(what)


def wait_for_epoch(launcher: subprocess.Popen[str], folder: Path, epoch: int = 1) -> None:
    """Wait until a started training has reported this epoch or a later one. Fails if the launcher has ended by then.

    A later one: a stop takes effect some steps after its signal, so the next start may already be past the epoch.
    """

    def reported() -> bool:
        return any(int(number) >= epoch for number in re.findall(r"epoch (\d+)/", messages(folder)))

    wait_for(lambda: reported() or launcher.poll() is not None, f"no epoch {epoch}")
    assert launcher.poll() is None, f"it ended too early: {messages(folder)}"


def rank_processes(launcher: subprocess.Popen[str]) -> list[psutil.Process]:
    """The training processes below a launcher, by rank."""
    children = psutil.Process(launcher.pid).children()
    started = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]
    return sorted(started, key=lambda child: (child.create_time(), child.pid))


def gone(folder: Path) -> bool:
    """Whether no process has the folder as its working directory any more."""
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == folder:
                return False
        except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
            continue
    return True
