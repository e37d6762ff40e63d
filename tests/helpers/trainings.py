"""Trainings as processes of their own, to be watched and interrupted."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from pipeline.base import files
from pipeline.config import params
from pipeline.dataset import packed
from pipeline.learning.environment import required_variables
from pipeline.learning.state import make_model
from pipeline.learning.task import open_dataset
from pipeline.learning.world import World
from pipeline.running import launchers
from pipeline.running.job import Job, check_inputs
from pipeline.running.monitor import Monitor
from pipeline.stages import train
from tests.conftest import change, on_cpu, read_params, write_params
from tests.helpers import starts
from tests.helpers.projects import link_code
from tests.helpers.ranks import of_torchrun

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
    """Wait until a condition holds. Fails with `what` after ten minutes.

    A pause has five times the CPU seconds of a look: some conditions search all processes of the machine.
    """
    end = time.monotonic() + 600
    while time.monotonic() < end:
        began = time.thread_time()
        if condition():
            return
        time.sleep(max(0.01, 5 * (time.thread_time() - began)))
    raise AssertionError(what)


def wait_for_epoch(training: subprocess.Popen[str] | BaseProcess, folder: Path, epoch: int = 1) -> None:
    """Wait until a started training has reported this epoch or a later one. Fails if it has ended by then.

    A later one: a stop takes effect some steps after its signal, so the next start may already be past the epoch.
    """

    def reported() -> bool:
        log = folder / "said"
        return log.exists() and any(int(number) >= epoch for number in re.findall(r"epoch (\d+)/", messages(folder)))

    def status() -> int | None:
        return training.exitcode if isinstance(training, BaseProcess) else training.poll()

    wait_for(lambda: reported() or status() is not None, f"no epoch {epoch}")
    assert status() is None, f"it ended too early: {messages(folder)}"


def fork_ranks(folder: Path, stage: str = "train", **variables: str) -> list[BaseProcess]:
    """The processes of a stage, forked without a launcher. Their messages go to the file of `messages`."""
    count, log = read_params(folder / "params.yaml")["run"]["processes"], folder / "said"
    log.unlink(missing_ok=True)
    places = of_torchrun(count) if count > 1 else [launchers.ALONE]
    environ, words = {**os.environ, **required_variables(1, True), **variables}, ("-m", "pipeline", "rank", stage)
    return [starts.fork([sys.executable, *words], environ | place, folder, log, log) for place in places]


def stop_in_epoch(folder: Path, epoch: int = 1) -> None:
    """Train without a launcher, and ask the last process to stop after an epoch."""
    processes = fork_ranks(folder)
    wait_for_epoch(processes[0], folder, epoch)
    assert processes[-1].pid
    os.kill(processes[-1].pid, signal.SIGTERM)
    assert ends(processes) == [75] * len(processes), messages(folder)


def ends(processes: Sequence[BaseProcess]) -> list[int | None]:
    """Wait for these processes; their exit statuses."""
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def rank_processes(launcher: subprocess.Popen[str] | psutil.Process) -> list[psutil.Process]:
    """The training processes below a launcher, by rank."""
    children = psutil.Process(launcher.pid).children()
    ranks = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]
    return sorted(ranks, key=lambda child: (child.create_time(), child.pid))


def working_in(folder: Path, *words: str) -> list[psutil.Process]:
    """The processes in a folder or below it that have all these words in their command, other than zombies."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            is_there = Path(process.cwd()).is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE
            command = process.cmdline()
            if is_there and all(word in command for word in words):
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

    Its processes are forked without their launcher, unless that has something to copy, to refuse, or other variables.
    """
    raw, environ = read_params(folder / "params.yaml"), {**os.environ, **variables}
    is_usual = (raw["train"]["arithmetic"], raw["train"]["deterministic"]) == ("native", True)
    command = [sys.executable, "-m", "pipeline", "train"]
    if is_usual and raw["run"]["checkpoint_copy"] == "none" and starts.can_fork(environ):
        failed = [code for code in ends(fork_ranks(folder, **variables)) if code]
        done = subprocess.CompletedProcess(command, (failed or [0])[0], "", messages(folder))
    else:
        done = starts.run(command, cwd=folder, env=environ)
    assert not check or done.returncode == 0, done.stderr
    return done


def begun() -> tuple[Job, nn.Module]:
    """The training of the working folder, begun in this process, and its model."""
    config = params.load()
    data, run = check_inputs(config, ALONE, {})
    run.begin()
    job = Job(config, open_dataset(config, data, ALONE)[0], ALONE, run)
    return job, make_model(config, data.classes, ALONE)


def train_steps(job: Job, model: nn.Module, count: int) -> None:
    """Train in this process, which is killed after so many steps."""
    steps = iter(range(count))
    with pytest.MonkeyPatch.context() as patch, suppress(StopIteration):
        patch.setattr(Monitor, "step", lambda _: next(steps))
        train.train(job, model)


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
