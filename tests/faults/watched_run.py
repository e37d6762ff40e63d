"""A real `dvc repro`, watched from outside: its processes, its steps, and the moment at which a signal is sent."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.workspace import environment, events
from tests.faults.plan import AFTER, EPOCHS, Fault, last_stage
from tests.helpers.trainings import rank_processes, working_in

# The file that a stage writes last, or that takes it longest to write.
OUTPUTS = {
    "download": "data/.images.partial",
    "split": "data/.split.csv.partial",
    "prepare": "data/.packed.partial",
    "weights": "data/.weights.partial",
    "features": "data/.features.partial",
    "train": "models/.model.safetensors.partial",
    "evaluate": "metrics/.eval.json.partial",
    "export": "models/.model.onnx.partial",
    "card": "models/.README.md.partial",
    "report": "reports/.index.html.partial",
}
GONE_SECONDS = 30


@dataclass(frozen=True)
class Run:
    """A started `dvc repro`."""

    folder: Path
    stage: str  # the one to interrupt
    process: subprocess.Popen[bytes]
    log: Path  # stdout and stderr

    def wait_for(self, condition: Callable[[], Any], pause: float = 0.001) -> bool:
        """Wait until the condition holds; False if the run ends first."""
        while not condition():
            if self.process.poll() is not None:
                return False
            time.sleep(pause)
        return True

    def descendants(self) -> list[psutil.Process]:
        """Every process below the started one."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def launcher(self) -> psutil.Process | None:
        """The stage's first process: a child of DVC."""
        words = ["pipeline", self.stage]
        return next((process for process in self.descendants() if command_line(process)[2:] == words), None)

    def dvc(self) -> psutil.Process:
        """DVC's process: the started process, or its child."""
        started = psutil.Process(self.process.pid)
        return next((process for process in self.descendants() if "dvc" in command_line(process)[:4]), started)

    def steps(self) -> int:
        """The highest training step in TensorBoard's events, over all attempts."""
        return max((step for tag, step, _ in events(self.folder) if tag == "loss/train"), default=0)


def command_line(process: psutil.Process) -> list[str]:
    """A process's command line; empty if it has ended."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def start(folder: Path, stage: str, through_repro: bool = False) -> Run:
    """Start `dvc repro` up to the last stage that a fault in `stage` needs, in a process group of its own."""
    log, goal = folder.with_name("log"), last_stage(stage)
    command = ["-m", "pipeline", "repro", goal] if through_repro else ["-m", "dvc", "repro", goal]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder, env=environment(folder.parent), stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    return Run(folder, stage, process, log)


def left_in(folder: Path) -> list[psutil.Process]:
    """The processes that still work in `folder` after GONE_SECONDS; returns at once when there are none."""
    began = time.monotonic()
    while (processes := working_in(folder)) and time.monotonic() - began < GONE_SECONDS:
        time.sleep(0.1)
    return processes


def change_of(path: Path) -> Callable[[], bool]:
    """A condition: size or modification time of `path` differ from now."""

    def stamp() -> tuple[int, int]:
        try:
            status = path.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_size, status.st_mtime_ns

    before = stamp()
    return lambda: stamp() != before


def wait_for_moment(run: Run, moment: str, seconds: float, steps: int, generator: random.Random) -> bool:
    """Wait for the moment; False if the run has ended first.

    `seconds` is how long the stage takes with DVC's part, `steps` how many steps train takes.
    """
    lock_changed = change_of(run.folder / "dvc.lock")
    if not run.wait_for(lambda: run.launcher() is not None, 0.02):
        return False
    launcher, epoch = run.launcher(), generator.randint(1, EPOCHS)
    if moment in AFTER and launcher is not None:
        run.wait_for(lambda: not launcher.is_running())
    if moment == "work":
        time.sleep(generator.uniform(0, 0.7 * seconds))  # the rest is DVC's
    elif moment == "epoch":
        step = generator.randrange(1, steps)
        run.wait_for(lambda: run.steps() >= step, 0.01)
        time.sleep(generator.uniform(0, 0.1))
    elif moment == "validation":
        run.wait_for(lambda: run.steps() >= epoch * steps // EPOCHS, 0.01)
        time.sleep(generator.uniform(0, 0.1))
    elif moment == "checkpoint":
        run.wait_for(lambda: epoch == 1 or f"epoch {epoch - 1}/".encode() in run.log.read_bytes())
        run.wait_for(lambda: any(run.folder.glob("runs/*/.checkpoint.pt.partial")))
        time.sleep(generator.uniform(0, 0.1))
    elif moment == "export":
        run.wait_for((run.folder / OUTPUTS[run.stage]).exists, 0.0001)
    elif moment == "commit":
        time.sleep(generator.uniform(0, 0.5))
    elif moment == "lock":
        run.wait_for(lock_changed, 0)
    return run.process.poll() is None


def send(run: Run, fault: Fault, generator: random.Random) -> None:
    """Send the signal. A target that has just ended gets none."""
    number = signal.Signals[f"SIG{fault.signal}"]
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        launcher = run.launcher()
        if fault.target == "group":
            os.killpg(run.process.pid, number)
        elif fault.target == "repro":
            run.process.send_signal(number)
        elif fault.target == "dvc":
            run.dvc().send_signal(number)
        elif launcher is not None and fault.target == "rank" and (ranks := rank_processes(launcher)):
            generator.choice(ranks).send_signal(number)
        elif launcher is not None:
            launcher.send_signal(number)
