"""Kills a real `dvc repro`, many times: nothing stays running, nothing false is recorded, the bytes are the same.

    python -m benchmarks kill_sweep --trials 100 --seed 0 --out benchmarks/results/kill_sweep.json
    python -m benchmarks kill_sweep --elastic --trials 30 --seed 0 --out benchmarks/results/kill_sweep_elastic.json

The project is copied to a temporary folder and run there once without interruption (a small ResNet-18 on two CPU
processes). Each trial starts from a copy of the state before one stage, without DVC's run cache, so that nothing is
restored instead of run. It waits for its moment, sends one signal to one target, and then runs `python -m
pipeline.repro` until that succeeds (up to the struck stage; to the end, if that is train). A trial counts

    orphans    processes that still work in the copy after half a minute without the one that started them
    lie        the stage's entry in dvc.lock after the interruption is there, and is not the uninterrupted one
    same       dvc.lock in the end is the uninterrupted one, byte for byte
    lost       steps that TensorBoard's events show as taken before the signal, and that were taken again

The exit status is 1 if there is an orphan, a lie, or another dvc.lock. Moments are aimed at by watching; `missed` ones
came too late, the run had ended. A trial takes about half a minute on two cores, and one trial runs at a time.

With --elastic only train is struck, with train.parallel: elastic, and every start has another number of processes.
"""

import argparse
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from benchmarks.harness.measuring import machine
from benchmarks.harness.workspace import call, copy_project, environment, set_params
from pipeline.base import files

with warnings.catch_warnings():  # its import touches interfaces that its dependencies deprecate
    warnings.simplefilter("ignore")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

STAGES = ("download", "split", "prepare", "train", "evaluate")
PARAMS: dict[str, dict[str, Any]] = {
    "data": {"source": "synthetic", "synthetic": {"count": 120, "size": 48, "seed": 0}},
    "split": {"phash_distance": 0, "folds": 1, "fractions": {"train": 0.4, "val": 0.4, "test": 0.2}},
    "prepare": {"size": 64},
    "train": {
        "device": "cpu", "precision": "fp32", "parallel": "ddp", "model": "resnet18", "batch_size": 8, "epochs": 4,
        "crop": 32, "eval_crop": 64, "eval_resize": 64, "lr": 0.02, "warmup_epochs": 0,
    },
    "run": {"processes": 2, "log_steps": 1},
}  # fmt: skip
ELASTIC: dict[str, dict[str, Any]] = {**PARAMS, "train": {**PARAMS["train"], "parallel": "elastic", "shards": 4}}
EPOCHS = PARAMS["train"]["epochs"]

# What a stage writes last, or what takes it longest to write.
OUTPUTS = {
    "download": "data/.images.partial",
    "split": "data/.split.csv.partial",
    "prepare": "data/.packed.partial",
    "train": "models/.model.safetensors.partial",
    "evaluate": "metrics/.eval.json.partial",
}
AFTER = ("commit", "lock")  # the stage has ended, DVC takes its outputs over, and then rewrites dvc.lock
TRAIN = tuple(("train", moment) for moment in ("epoch", "checkpoint", "export", "validation", *AFTER))
OTHERS = tuple((stage, moment) for moment in ("work", "export", *AFTER) for stage in STAGES if stage != "train")
SIGNALS = ("KILL", "TERM", "INT")
GONE_SECONDS = 30
MOST_REPROS = 4


@dataclass(frozen=True)
class Strike:
    """One signal to one target at one moment of one stage."""

    stage: str
    moment: str
    signal: str
    target: str  # rank, launcher (or the stage itself, where it has none), dvc, group, repro (python -m pipeline.repro)


@dataclass(frozen=True)
class Trial:
    """What came of a strike."""

    strike: Strike
    missed: bool
    status: int  # exit status of what was started; negative: the signal that ended it
    orphans: int
    gone_seconds: float  # from the signal until no process was left
    repros: int  # runs until one succeeded
    repairs: list[str]  # what pipeline.repro had to put right
    lie: bool
    same: bool
    last_step: int | None  # of train: steps taken before the signal
    resumed_step: int | None  # and the one it was gone on from; None: train was not run again
    seconds: float

    @property
    def lost(self) -> int | None:
        """Steps that were taken twice."""
        if self.last_step is None or self.resumed_step is None:
            return None
        return max(0, self.last_step - self.resumed_step)

    @property
    def broken(self) -> bool:
        """Whether a promise was."""
        return self.orphans > 0 or self.lie or not self.same


@dataclass(frozen=True)
class Whole:
    """The uninterrupted run."""

    locks: dict[str, bytes]  # dvc.lock after each stage
    seconds: dict[str, float]  # how long each stage took, with DVC's part
    steps: int  # of train
    processes: tuple[int, ...]  # how many may train


# ---------------------------------------------------------------- what to strike


def goal(stage: str) -> str:
    """How far a trial runs: to the end from train on; else no further than the struck stage, to save time."""
    return "evaluate" if stage in ("train", "evaluate") else stage


def targets(stage: str, moment: str) -> tuple[str, ...]:
    """Who can be struck then."""
    if moment in AFTER:
        return ("dvc", "group", "repro")
    return ("rank", "launcher", "dvc", "group", "repro")[stage not in ("train", "evaluate") :]


def plan(trials: int, seed: int, others: tuple[tuple[str, str], ...] = OTHERS) -> list[Strike]:
    """The strikes of a sweep: every moment of every stage twice, those of train first, then train's again and again."""
    source = random.Random(seed)
    twice = [*TRAIN, *others] * 2
    places = itertools.islice(itertools.chain(twice, itertools.cycle(TRAIN)), trials)
    hands = {}  # each moment goes through all its pairs of signal and target, in an order of its own
    for place in (*TRAIN, *OTHERS):
        pairs = list(itertools.product(SIGNALS, targets(*place)))
        source.shuffle(pairs)
        hands[place] = itertools.cycle(pairs)
    return [Strike(*place, *next(hands[place])) for place in places]


# ---------------------------------------------------------------- a run, watched from outside


@dataclass(frozen=True)
class Run:
    """A started `dvc repro`."""

    folder: Path
    stage: str  # the one to strike
    process: subprocess.Popen[bytes]
    said: Path  # what it says

    def wait_for(self, condition: Callable[[], Any], pause: float = 0.001) -> bool:
        """Wait until something is so; False if the run ends before."""
        while not condition():
            if self.process.poll() is not None:
                return False
            time.sleep(pause)
        return True

    def below(self) -> list[psutil.Process]:
        """Every process below the started one."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def launcher(self) -> psutil.Process | None:
        """The stage's first process: a child of DVC."""
        module = ["pipeline.launch", self.stage] if self.stage in ("train", "evaluate") else [f"pipeline.{self.stage}"]
        return next((found for found in self.below() if words(found)[2:] == module), None)

    def ranks(self, launcher: psutil.Process) -> list[psutil.Process]:
        """The processes that do the work, in the order of their start."""
        try:
            found = [child for child in launcher.children() if f"pipeline.{self.stage}" in words(child)]
        except psutil.NoSuchProcess:
            return []
        return sorted(found, key=lambda child: child.pid)

    def dvc(self) -> psutil.Process:
        """DVC itself: the started process, or its child."""
        return next((found for found in self.below() if "dvc" in words(found)[:3]), psutil.Process(self.process.pid))

    def steps(self) -> int:
        """How many steps the events show as taken, in all attempts."""
        return max(
            (
                event.step
                for path in self.folder.glob("runs/*/tensorboard/*/events*")
                for event in EventFileLoader(str(path)).Load()
                if any(value.tag == "loss" for value in event.summary.value)
            ),
            default=0,
        )


def words(process: psutil.Process) -> list[str]:
    """A process's command line; empty if it is gone."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def start(folder: Path, stage: str, through_repro: bool = False) -> Run:
    """Start `dvc repro`, as far as a strike at `stage` needs it, in a process group of its own."""
    said = folder.with_name("said")
    command = ["-m", "pipeline.repro", goal(stage)] if through_repro else ["-m", "dvc", "repro", goal(stage)]
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder, env=environment(folder.parent), stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    return Run(folder, stage, process, said)


def working_in(folder: Path) -> list[psutil.Process]:
    """The processes, other than zombies, whose working directory is `folder`."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == folder:
                found.append(process)
    return found


def left_in(folder: Path) -> list[psutil.Process]:
    """The processes that still work in `folder` after GONE_SECONDS; returns at once when there are none."""
    began = time.monotonic()
    while (left := working_in(folder)) and time.monotonic() - began < GONE_SECONDS:
        time.sleep(0.1)
    return left


# ---------------------------------------------------------------- the moment


def changed(path: Path) -> Callable[[], bool]:
    """A condition: `path` is no longer what it is now."""

    def stamp() -> tuple[int, int]:
        try:
            facts = path.stat()
        except FileNotFoundError:
            return 0, 0
        return facts.st_size, facts.st_mtime_ns

    before = stamp()
    return lambda: stamp() != before


def aim(run: Run, moment: str, whole: Whole, source: random.Random) -> bool:
    """Wait for the moment; False if the run has ended before."""
    rewritten = changed(run.folder / "dvc.lock")
    if not run.wait_for(lambda: run.launcher() is not None, 0.02):
        return False
    launcher, epoch = run.launcher(), source.randint(1, EPOCHS)
    if moment in AFTER and launcher is not None:
        run.wait_for(lambda: not launcher.is_running())
    if moment == "work":
        time.sleep(source.uniform(0, 0.7 * whole.seconds[run.stage]))  # the rest is DVC's
    elif moment == "epoch":
        step = source.randrange(1, whole.steps)
        run.wait_for(lambda: run.steps() >= step, 0.01)
        time.sleep(source.uniform(0, 0.1))
    elif moment == "validation":
        run.wait_for(lambda: run.steps() >= epoch * whole.steps // EPOCHS, 0.01)
        time.sleep(source.uniform(0, 0.1))
    elif moment == "checkpoint":
        run.wait_for(lambda: epoch == 1 or f"epoch {epoch - 1}/".encode() in run.said.read_bytes())
        run.wait_for(lambda: any(run.folder.glob("runs/*/.checkpoint.pt.partial")))
        time.sleep(source.uniform(0, 0.1))
    elif moment == "export":
        run.wait_for((run.folder / OUTPUTS[run.stage]).exists, 0.0001)
    elif moment == "commit":
        time.sleep(source.uniform(0, 0.5))
    elif moment == "lock":
        run.wait_for(rewritten, 0)
    return run.process.poll() is None


def send(run: Run, strike: Strike, source: random.Random) -> None:
    """Send the signal. A target that has just ended is not there to be struck, as in life."""
    number = signal.Signals[f"SIG{strike.signal}"]
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        launcher = run.launcher()
        if strike.target == "group":
            os.killpg(run.process.pid, number)
        elif strike.target == "repro":
            run.process.send_signal(number)
        elif strike.target == "dvc":
            run.dvc().send_signal(number)
        elif launcher is not None and (ranks := run.ranks(launcher)) and strike.target == "rank":
            source.choice(ranks).send_signal(number)
        elif launcher is not None:
            launcher.send_signal(number)


# ---------------------------------------------------------------- a trial


def entry(lock: bytes, stage: str) -> Any:
    """What a dvc.lock says of a stage; None if it says nothing that can be read."""
    try:
        content = YAML(typ="safe", pure=True).load(lock.decode(errors="replace"))
        return content["stages"].get(stage)
    except (YAMLError, TypeError, KeyError, AttributeError):
        return None


def attempt(before: Path, whole: Whole, strike: Strike, source: random.Random) -> Trial:
    """Strike a run that starts from a copy of `before`, and run again until it succeeds."""
    folder, began = before.with_name("trial"), time.monotonic()
    expected = whole.locks[goal(strike.stage)]
    shutil.copytree(before, folder, symlinks=True)
    set_params(folder, {"run": {"processes": source.choice(whole.processes)}})
    run = start(folder, strike.stage, through_repro=strike.target == "repro")
    missed = not aim(run, strike.moment, whole, source)
    send(run, strike, source)
    struck = time.monotonic()
    status = run.process.wait()
    left = left_in(folder)
    gone = time.monotonic() - struck
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    lock = folder / "dvc.lock"
    claimed = entry(lock.read_bytes(), strike.stage) if lock.is_file() else None
    last_step = run.steps() if strike.stage == "train" else None
    repros, said, again = 0, "", None
    while again != 0 and repros < MOST_REPROS:
        set_params(folder, {"run": {"processes": source.choice(whole.processes)}})
        done = call(folder, sys.executable, "-m", "pipeline.repro", goal(strike.stage))
        repros, said, again = repros + 1, said + done.stdout + done.stderr, done.returncode
    resumed = [int(step) for step in re.findall(r"going on from step (\d+)", said)]
    if not resumed and "Running stage 'train'" in said:
        resumed = [0]
    same = again == 0 and lock.read_bytes() == expected
    if not same:
        print(f"{strike}: status {status}\n{run.said.read_text()}\n---- again:\n{said}", file=sys.stderr)
    shutil.rmtree(folder)
    return Trial(
        strike,
        missed,
        status,
        len(left),
        round(gone, 1),
        repros,
        re.findall(r"^repro: (.*)", said, re.MULTILINE),
        claimed is not None and claimed != entry(expected, strike.stage),
        same,
        last_step,
        resumed[0] if resumed and strike.stage == "train" else None,
        round(time.monotonic() - began, 1),
    )


def prepare(base: Path, elastic: bool) -> Whole:
    """Run the pipeline once, keeping in `base/<stage>` the state before each stage. Raises RuntimeError if it fails."""
    folder = base / "whole"
    copy_project(folder, ELASTIC if elastic else PARAMS)
    locks, seconds = {}, {}
    for stage in STAGES:
        shutil.copytree(folder, base / stage, symlinks=True)
        files.remove(base / stage / ".dvc/cache/runs")
        began = time.monotonic()
        done = call(folder, sys.executable, "-m", "dvc", "repro", stage)
        if done.returncode != 0:
            raise RuntimeError(f"the uninterrupted run failed:\n{done.stdout}\n{done.stderr}")
        locks[stage], seconds[stage] = (folder / "dvc.lock").read_bytes(), time.monotonic() - began
    steps = json.loads((folder / "metrics/train.json").read_text())["steps"]
    shutil.rmtree(folder)
    return Whole(locks, seconds, steps, (1, 2, 3, 4) if elastic else (2,))


def sweep(trials: int, seed: int, elastic: bool = False) -> Iterator[Trial]:
    """Run the planned trials, one after another."""
    with tempfile.TemporaryDirectory(prefix="kill-sweep-") as temporary:
        base = Path(temporary).resolve()
        whole = prepare(base, elastic)
        for number, strike in enumerate(plan(trials, seed, () if elastic else OTHERS)):
            yield attempt(base / strike.stage, whole, strike, random.Random(f"{seed}/{number}"))


# ---------------------------------------------------------------- figures

ROW = "{:>4}  {:<9} {:<11} {:<5} {:<9} {:>6} {:>8} {:>7} {:>7} {:<5} {:<5} {:>5} {:>8}"
HEADER = (
    "",
    "stage",
    "moment",
    "sent",
    "to",
    "status",
    "orphans",
    "gone s",
    "repros",
    "lie",
    "same",
    "lost",
    "seconds",
)


def row(number: int, trial: Trial) -> str:
    """A trial as a line of the table."""
    strike, no_yes = trial.strike, ("no", "YES")
    moment = f"{strike.moment}{' (missed)' * trial.missed}"
    return ROW.format(
        number, strike.stage, moment, strike.signal, strike.target, trial.status, trial.orphans, trial.gone_seconds,
        trial.repros, no_yes[trial.lie], "yes" if trial.same else "NO", "" if trial.lost is None else trial.lost,
        trial.seconds,
    )  # fmt: skip


def summary(done: list[Trial]) -> dict[str, Any]:
    """The figures of a sweep."""
    lost = [trial.lost for trial in done if trial.lost is not None]
    return {
        "trials": len(done),
        "missed": sum(trial.missed for trial in done),
        "orphans": sum(trial.orphans for trial in done),
        "recorded_as_success": sum(trial.lie for trial in done),
        "differing_locks": sum(not trial.same for trial in done),
        "ended_by_the_signal": sum(trial.status != 0 for trial in done),
        "most_repros": max(trial.repros for trial in done),
        "repairs": sum(len(trial.repairs) for trial in done),
        "most_gone_seconds": max(trial.gone_seconds for trial in done),
        "most_lost_steps": max(lost, default=0),
        "mean_lost_steps": sum(lost) / max(1, len(lost)),
        "seconds": round(sum(trial.seconds for trial in done), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks kill_sweep", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--elastic", action="store_true", help="with another number of processes at every start")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures, written anew after every trial")
    options = parser.parse_args()
    done: list[Trial] = []
    print(ROW.format(*HEADER), flush=True)
    for trial in sweep(options.trials, options.seed, options.elastic):
        done.append(trial)
        print(row(len(done), trial), flush=True)
        if options.out:
            rows = [{**asdict(trial), "lost": trial.lost} for trial in done]
            content = {
                "seed": options.seed,
                "elastic": options.elastic,
                "machine": machine(),
                "summary": summary(done),
                "trials": rows,
            }
            files.write_json(options.out, content)
    print(*(f"{name:<32} {value}" for name, value in summary(done).items()), sep="\n")
    return int(any(trial.broken for trial in done))


if __name__ == "__main__":
    sys.exit(main())
