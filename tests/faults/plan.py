"""The plan of a kill sweep: which signal goes to which process, at which moment of which stage."""

import itertools
import random
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.workspace import STAGES

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

AFTER = ("commit", "lock")  # the stage has ended; DVC moves its outputs into the cache, then rewrites dvc.lock
TRAIN = tuple(("train", moment) for moment in ("epoch", "checkpoint", "export", "validation", *AFTER))
OTHERS = tuple((stage, moment) for moment in ("work", "export", *AFTER) for stage in STAGES if stage != "train")
SIGNALS = ("KILL", "TERM", "INT")


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
