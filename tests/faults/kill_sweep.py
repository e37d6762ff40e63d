"""Kills a real `dvc repro` many times: no process stays, dvc.lock records nothing false, the bytes are the same.

    python -m tests.faults.kill_sweep --trials 60 --seed 0 --out benchmarks/results/kill_sweep.json
    python -m tests.faults.kill_sweep --elastic --trials 30 --seed 0 --out benchmarks/results/kill_sweep_elastic.json

The project is copied to a temporary folder and run there once without interruption (a small ResNet-18 on two CPU
processes). Each trial starts from a copy of the state before one stage, without DVC's run cache, so nothing is restored
instead of run. The trial waits for its moment and sends one signal to one target. Then it runs `perennial
repro` until that succeeds: up to the interrupted stage, or to the end if that is train. A trial counts

    orphans         processes that still work in the copy half a minute after the run has ended
    false_record    dvc.lock has an entry of the stage after the interruption, and it differs from the reference run's
    same            dvc.lock in the end is that of the reference run, byte for byte
    lost            training steps that TensorBoard's events show before the signal, and that were computed again

The exit status is 1 if there is an orphan, a false record or another dvc.lock. The moment is recognized by watching.
A trial is `missed` if the run had ended before the signal. A trial takes about half a minute on two cores; trials run
one after another.

With --elastic only train is interrupted, with train.parallel: elastic, and every start has another number of processes.
"""

import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.measuring import machine
from benchmarks.harness.workspace import STAGES, create_repository, environment, events, set_params, temporary_folder
from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.versioning import dvc_lock
from tests.faults import campaign
from tests.faults.campaign import Row
from tests.helpers.projects import call
from tests.helpers.trainings import rank_processes, working_in

PARAMS: dict[str, dict[str, Any]] = {
    "data": {"source": "synthetic", "synthetic": {"count": 120, "size": 48}},
    "split": {"phash_distance": 0, "folds": 1, "fractions": {"train": 0.4, "val": 0.4, "test": 0.2}},
    "prepare": {"size": 64},
    "train": {
        "device": "cpu", "precision": "fp32", "parallel": "ddp", "model": "resnet18", "batch_size": 8, "epochs": 4,
        "crop": 32, "eval_crop": 64, "eval_resize": 64, "lr": 0.02, "warmup_epochs": 0,
    },
    "run": {"processes": 2, "log_steps": 1, "epoch_checkpoint_seconds": 0},
}  # fmt: skip
ELASTIC: dict[str, dict[str, Any]] = {**PARAMS, "train": {**PARAMS["train"], "parallel": "elastic", "shards": 4}}
EPOCHS = PARAMS["train"]["epochs"]
SIGNALS = ("KILL", "TERM", "INT")
AFTER = ("commit", "lock")  # the stage has ended; DVC moves its outputs into the cache, then rewrites dvc.lock
TRAIN = tuple(("train", moment) for moment in ("epoch", "checkpoint", "export", "validation", *AFTER))
OTHERS = tuple((stage, moment) for moment in ("work", "export", *AFTER) for stage in STAGES if stage != "train")
OUTPUTS = {  # the file that a stage writes last, or that takes it longest to write
    "download": "data/.images.partial", "split": "data/.split.csv.partial", "prepare": "data/.packed.partial",
    "weights": "data/.weights.partial", "features": "data/.features.partial",
    "train": "models/.model.safetensors.partial", "evaluate": "metrics/.eval.json.partial",
    "export": "models/.model.onnx.partial", "card": "models/.README.md.partial",
    "report": "reports/.index.html.partial",
}  # fmt: skip
GONE_SECONDS = 30
MOST_REPROS = 4


# ---------------------------------------------------------------- the plan


@dataclass(frozen=True)
class Fault:
    """One signal to one target at one moment of one stage.

    The target is "rank", "launcher" (in a stage without a launcher: the stage), "dvc", "group" (the process group), or
    "repro" (`perennial repro`).
    """

    stage: str
    moment: str
    signal: str
    target: str


def last_stage(stage: str) -> str:
    """The last stage that a trial runs: evaluate for train; else the interrupted stage, to save time."""
    return "evaluate" if stage in ("train", "evaluate") else stage


def targets(stage: str, moment: str) -> tuple[str, ...]:
    """The targets that exist at this moment."""
    if moment in AFTER:
        return ("dvc", "group", "repro")
    return ("rank", "launcher", "dvc", "group", "repro")[stage not in ("train", "evaluate") :]


def plan(trials: int, seed: int, others: tuple[tuple[str, str], ...] = OTHERS) -> list[Fault]:
    """The faults of a sweep: each moment of each stage twice, train's first; then train's moments again and again."""
    generator = random.Random(seed)
    twice = [*TRAIN, *others] * 2
    moments = itertools.islice(itertools.chain(twice, itertools.cycle(TRAIN)), trials)
    pairs = {}  # each moment has its own random order of all (signal, target) pairs
    for stage, moment in (*TRAIN, *OTHERS):
        of_moment = list(itertools.product(SIGNALS, targets(stage, moment)))
        generator.shuffle(of_moment)
        pairs[stage, moment] = itertools.cycle(of_moment)
    return [Fault(stage, moment, *next(pairs[stage, moment])) for stage, moment in moments]


# ---------------------------------------------------------------- a run, watched from outside


@dataclass(frozen=True)
class Run:
    """A started `dvc repro`, and the stage to interrupt."""

    folder: Path
    stage: str
    process: subprocess.Popen[bytes]
    log: Path  # stdout and stderr

    def wait_for(self, condition: Callable[[], Any], pause: float = 0.001) -> bool:
        """Wait until the condition holds; False if the run ends first."""
        while not condition():
            if self.process.poll() is not None:
                return False
            time.sleep(pause)
        return True

    def first(self, matches: Callable[[list[str]], bool]) -> psutil.Process | None:
        """The first process below the started one whose command line matches."""
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.Error):  # it has ended
                    if matches(process.cmdline()):
                        return process
        return None

    def launcher(self) -> psutil.Process | None:
        """The stage's first process: a child of DVC."""
        return self.first(lambda words: words[2:] == ["pipeline", self.stage])

    def steps(self) -> int:
        """The highest training step in TensorBoard's events, over all attempts."""
        return max((step for tag, step, _ in events(self.folder) if tag == "loss/train"), default=0)


def start(folder: Path, fault: Fault) -> Run:
    """Start DVC up to the last stage that a fault needs, in a process group of its own."""
    log, module = folder.with_name("log"), "pipeline" if fault.target == "repro" else "dvc"
    command = [sys.executable, "-m", module, "repro", last_stage(fault.stage)]
    environ = environment(folder.parent)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environ, stdout=output, stderr=output, start_new_session=True
        )
    return Run(folder, fault.stage, process, log)


def left_in(folder: Path) -> list[psutil.Process]:
    """The processes that still work in `folder` after GONE_SECONDS; returns at once when there are none."""
    began = time.monotonic()
    while (processes := working_in(folder)) and time.monotonic() - began < GONE_SECONDS:
        time.sleep(0.1)
    return processes


def stamp(path: Path) -> tuple[int, int]:
    """Size and modification time of a file; zeros if there is none."""
    with suppress(FileNotFoundError):
        return path.stat().st_size, path.stat().st_mtime_ns
    return 0, 0


def wait_for_moment(run: Run, moment: str, seconds: float, steps: int, generator: random.Random) -> bool:
    """Wait for the moment; False if the run has ended first.

    `seconds` is how long the stage takes with DVC's part, `steps` how many steps train takes.
    """
    lock = run.folder / "dvc.lock"
    before = stamp(lock)
    if not run.wait_for(lambda: run.launcher() is not None, 0.02):
        return False
    launcher, epoch = run.launcher(), generator.randint(1, EPOCHS)
    if moment in AFTER and launcher is not None:
        run.wait_for(lambda: not launcher.is_running())
    if moment == "work":
        time.sleep(generator.uniform(0, 0.7 * seconds))  # the rest is DVC's
    elif moment in ("epoch", "validation"):
        step = generator.randrange(1, steps) if moment == "epoch" else epoch * steps // EPOCHS
        run.wait_for(lambda: run.steps() >= step, 0.01)
    elif moment == "checkpoint":
        run.wait_for(lambda: epoch == 1 or f"epoch {epoch - 1}/".encode() in run.log.read_bytes())
        run.wait_for(lambda: any(run.folder.glob("runs/*/.checkpoint.pt.partial")))
    elif moment == "export":
        run.wait_for((run.folder / OUTPUTS[run.stage]).exists, 0.0001)
    elif moment == "commit":
        time.sleep(generator.uniform(0, 0.5))
    elif moment == "lock":
        run.wait_for(lambda: stamp(lock) != before, 0)
    if moment in ("epoch", "validation", "checkpoint"):
        time.sleep(generator.uniform(0, 0.1))
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
        elif fault.target == "dvc":  # the started process, or its child
            (run.first(lambda words: "dvc" in words[:4]) or run.process).send_signal(number)
        elif launcher is not None and fault.target == "rank" and (ranks := rank_processes(launcher)):
            generator.choice(ranks).send_signal(number)
        elif launcher is not None:
            launcher.send_signal(number)


# ---------------------------------------------------------------- a trial


@dataclass(frozen=True)
class Reference:
    """The uninterrupted run."""

    locks: dict[str, bytes]  # dvc.lock after each stage
    seconds: dict[str, float]  # how long each stage took, with DVC's part
    steps: int  # of train
    processes: tuple[int, ...]  # the numbers of processes that a start may have


@dataclass(frozen=True)
class Trial:
    """The outcome of one fault."""

    fault: Fault
    missed: bool
    status: int  # exit status of the interrupted command; negative: the signal that ended it
    orphans: int
    gone_seconds: float  # from the signal until no process was left
    repros: int  # runs until one succeeded
    repairs: list[str]  # what `perennial repro` repaired
    false_record: bool
    same: bool
    last_step: int | None  # of train: the last step before the signal
    resumed_step: int | None  # the step at which train was resumed; None: train did not run again
    seconds: float

    @property
    def lost(self) -> int | None:
        """Steps that were computed twice."""
        if self.last_step is None or self.resumed_step is None:
            return None
        return max(0, self.last_step - self.resumed_step)


def prepare(base: Path, elastic: bool) -> Reference:
    """Run the pipeline once, and keep the state before each stage in `base/<stage>`. AssertionError if it fails."""
    folder = base / "reference"
    create_repository(folder, ELASTIC if elastic else PARAMS)
    locks, seconds = {}, {}
    for stage in STAGES:
        shutil.copytree(folder, base / stage, symlinks=True)
        files.remove(base / stage / ".dvc/cache/runs")
        began = time.monotonic()
        call(folder, sys.executable, "-m", "dvc", "repro", stage)
        locks[stage], seconds[stage] = (folder / "dvc.lock").read_bytes(), time.monotonic() - began
    steps = int(files.read_csv(folder / "metrics/history.csv")[-1]["step"])
    shutil.rmtree(folder)
    return Reference(locks, seconds, steps, (1, 2, 3, 4) if elastic else (2,))


def run_trial(before: Path, reference: Reference, fault: Fault, generator: random.Random) -> Trial:
    """Interrupt a run that starts from a copy of `before`, and run again until it succeeds."""
    folder, began = before.with_name("trial"), time.monotonic()
    lock, expected = folder / "dvc.lock", reference.locks[last_stage(fault.stage)]
    shutil.copytree(before, folder, symlinks=True)
    set_params(folder, {"run": {"processes": generator.choice(reference.processes)}})
    run = start(folder, fault)
    seconds = reference.seconds[fault.stage]
    missed = not wait_for_moment(run, fault.moment, seconds, reference.steps, generator)
    send(run, fault, generator)
    sent = time.monotonic()
    status = run.process.wait()
    orphans = left_in(folder)
    gone = time.monotonic() - sent
    for process in orphans:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    record = None
    with suppress(UserError):  # missing, or cut, which the next run says and repairs
        record = dvc_lock.entries(lock).get(fault.stage)
    last_step = run.steps() if fault.stage == "train" else None
    # All of them: if the signal cut the only dvc.lock, the stages before the interrupted one are made again, too.
    (right := folder.with_name("expected.lock")).write_bytes(expected)
    entries = dvc_lock.entries(right)
    repros, log, notes, again = 0, "", "", None
    while again != 0 and repros < MOST_REPROS:
        set_params(folder, {"run": {"processes": generator.choice(reference.processes)}})
        done = call(folder, sys.executable, "-m", "pipeline", "repro", *entries, check=False)
        repros, again = repros + 1, done.returncode
        log, notes = log + done.stdout + done.stderr, notes + done.stderr
    same = again == 0 and lock.read_bytes() == expected
    if not same:
        print(f"{fault}: status {status}\n{run.log.read_text()}\n---- again:\n{log}", file=sys.stderr)
    shutil.rmtree(folder)
    return Trial(
        fault, missed, status, len(orphans), round(gone, 1), repros,
        repairs=re.findall(r"^repro: (.*)", notes, re.MULTILINE),
        false_record=record is not None and record != entries.get(fault.stage),
        same=same, last_step=last_step, resumed_step=resumed_step(log) if fault.stage == "train" else None,
        seconds=round(time.monotonic() - began, 1),
    )  # fmt: skip


def resumed_step(log: str) -> int | None:
    """The step at which train was resumed; 0 if it began anew; None if it did not run."""
    if steps := re.findall(r"going on from step (\d+)", log):
        return int(steps[0])
    return 0 if re.search("^train: ", log, re.MULTILINE) else None


# ---------------------------------------------------------------- all of them


def sweep(trials: int, seed: int, elastic: bool = False) -> Iterator[Trial]:
    """Run the planned trials, one after another."""
    with temporary_folder("kill-sweep") as base:
        reference = prepare(base, elastic)
        for number, fault in enumerate(plan(trials, seed, () if elastic else OTHERS)):
            yield run_trial(base / fault.stage, reference, fault, random.Random(f"{seed}/{number}"))


def summary(done: list[Row]) -> dict[str, Any]:
    """The figures of a sweep."""
    lost = [row["lost"] for row in done if row["lost"] is not None]
    return {
        "trials": len(done),
        "missed": sum(row["missed"] for row in done),
        "orphans": sum(row["orphans"] for row in done),
        "recorded_as_success": sum(row["false_record"] for row in done),
        "differing_locks": sum(not row["same"] for row in done),
        "ended_by_the_signal": sum(row["status"] != 0 for row in done),
        "most_repros": max(row["repros"] for row in done),
        "repairs": sum(len(row["repairs"]) for row in done),
        "most_gone_seconds": max(row["gone_seconds"] for row in done),
        "most_lost_steps": max(lost, default=0),
        "mean_lost_steps": sum(lost) / max(1, len(lost)),
        "seconds": round(sum(row["seconds"] for row in done), 1),
    }


def main() -> int:
    parser = campaign.parser("kill_sweep", __doc__)
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--elastic", action="store_true", help="with another number of processes at every start")
    options = parser.parse_args()
    rows = ({**asdict(trial), "lost": trial.lost} for trial in sweep(options.trials, options.seed, options.elastic))
    conditions = {"seed": options.seed, "elastic": options.elastic, "machine": machine()}
    done = campaign.run(rows, options.out, lambda done: {**conditions, "summary": summary(done), "trials": done})
    return int(any(row["orphans"] or row["false_record"] or not row["same"] for row in done))


if __name__ == "__main__":
    sys.exit(main())
