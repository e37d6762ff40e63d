"""Trainings as processes of their own, to be watched and interrupted."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from pipeline.base import files
from pipeline.dataset import packed
from pipeline.learning.environment import required_variables
from pipeline.learning.world import World
from pipeline.running import launchers
from tests.conftest import change, on_cpu, read_params, write_params
from tests.helpers import starts
from tests.helpers.projects import link_code

ALONE = World(rank=0, local_rank=0, size=1, device=torch.device("cpu"))
CLASSES = ("circle", "cross", "square")
# 72 steps: long enough to be hit in the middle. A kill loses at most one epoch.
LONG: dict[str, Any] = {"train__epochs": 16, "run__log_steps": 2, "run__epoch_checkpoint_seconds": 0}


def start(folder: Path, stage: str = "train") -> subprocess.Popen[str]:
    """`perennial STAGE` in a session of its own. Its messages go to a file (see `messages`)."""
    command = [sys.executable, "-m", "pipeline", stage]
    with (folder / "said").open("w") as file:
        return subprocess.Popen(command, cwd=folder, stderr=file, start_new_session=True, text=True)


def messages(folder: Path) -> str:
    """What the stage that was started in a folder has written to standard error."""
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


def stop_in_epoch(folder: Path, epoch: int = 1) -> None:
    """Start a training, and ask its last process to stop after an epoch."""
    launcher = start(folder)
    wait_for_epoch(launcher, folder, epoch)
    rank_processes(launcher)[-1].send_signal(signal.SIGTERM)
    assert launcher.wait(600) == 75, messages(folder)


def rank_processes(launcher: subprocess.Popen[str] | psutil.Process) -> list[psutil.Process]:
    """The training processes below a launcher, by rank."""
    children = psutil.Process(launcher.pid).children()
    ranks = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]
    return sorted(ranks, key=lambda child: (child.create_time(), child.pid))


def working_in(folder: Path) -> list[psutil.Process]:
    """The processes, other than zombies, whose working directory is `folder`."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == folder:
                processes.append(process)
    return processes


def gone(folder: Path) -> bool:
    """Whether no process has the folder as its working directory any more."""
    return not working_in(folder)


def small_world(folder: Path, count: int = 60, side: int = 40, **changes: Any) -> Path:
    """A folder with params and a packed data set of three easy kinds of images, as prepare would leave it."""
    random = np.random.default_rng(0)
    images = random.integers(0, 80, (count, side, side, 3), dtype=np.uint8)
    names = [CLASSES[k % 3] for k in range(count)]
    for square, name in zip(images, names, strict=True):
        y, x = (np.indices((side, side)) - side // 2) // 2
        shape = {"circle": x * x + y * y < 40, "cross": (x == y) | (x == -y), "square": abs(x) + 0 * y < 4}[name]
        square[shape] += 150
    splits = ["train" if k % 10 < 6 else "val" if k % 10 < 8 else "test" for k in range(count)]
    header = ("path", "class", "split", "reason", "width", "height", "pixels", "phash", "group")
    rows = [
        (f"{c}/{k:03}.png", c, s, "", 60, 50, "", "", "") for k, (c, s) in enumerate(zip(names, splits, strict=True))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    files.write_csv(folder / "data/split.csv", header, rows)
    with files.atomic_folder(folder / "data/packed") as packing:
        packed.write(packing, iter(images), count, side)
    link_code(folder)
    write_params(folder / "params.yaml", change(on_cpu(read_params()), **{"train__epochs": 2, **changes}))
    return folder


def launch(folder: Path, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    """`perennial train`, with these environment variables besides.

    A single process is forked without its launcher, unless that has something to copy, to refuse, or other variables.
    """
    raw, environ = read_params(folder / "params.yaml"), {**os.environ, **variables}
    is_alone = raw["run"]["processes"] == 1 and raw["run"]["checkpoint_copy"] == "none" and starts.can_fork(environ)
    is_usual = (raw["train"]["arithmetic"], raw["train"]["deterministic"]) == ("native", True)
    words = ["rank", "train"] if is_alone and is_usual else ["train"]
    environ |= {**launchers.ALONE, **required_variables(1, True)} if is_alone and is_usual else {}
    done = starts.run([sys.executable, "-m", "pipeline", *words], cwd=folder, env=environ)
    assert not check or done.returncode == 0, done.stderr
    return done


def digests(folder: Path, *names: str) -> dict[str, str]:
    """The SHA-256 of these files, and of every file in these folders, by its path. What is missing is left out."""
    paths = [path for name in names for path in (folder / name, *(folder / name).rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): files.sha256(path) for path in sorted(paths)}


def outputs(folder: Path) -> dict[str, str]:
    """What the stage wrote, by its SHA-256: pytest would compare megabytes that differ line by line, for hours."""
    models = ("model.safetensors", "model.json", "config.json")
    names = (*(f"models/{name}" for name in models), "metrics/train.json", "metrics/history.csv")
    result = digests(folder, *names)
    assert len(result) == len(names), list(result)
    return result
