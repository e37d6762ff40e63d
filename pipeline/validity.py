"""Which params can run where: one pure function. Every stage asks it first, so nobody downloads only to be refused."""

import math

from pipeline.machine import Machine
from pipeline.params import Params

DEMO = "to try the pipeline on this machine: make demo"

# The members of the two tables in engine/precision.py and engine/parallel.py; a test holds them equal.
PRECISIONS = ("fp32", "bf16")
PARALLELS = ("single", "ddp")


def faults(params: Params, machine: Machine) -> list[str]:
    """Every reason why these params cannot run on this machine, a sentence each; empty if they can."""
    return _train(params, machine) + _data(params)


def _train(params: Params, machine: Machine) -> list[str]:
    train, run, found = params.train, params.run, []
    if train.device == "cuda" and machine.cuda_devices == 0:
        found.append(
            f"train.device: 'cuda' needs an NVIDIA GPU and its driver (found: none); allowed here: cpu; {DEMO}"
        )
    if train.precision not in PRECISIONS:
        found.append(
            f"train.precision: {train.precision!r} is not built yet; allowed: {', '.join(PRECISIONS)}; "
            f"for mixed precision take bf16"
        )
    if train.parallel not in PARALLELS:
        found.append(
            f"train.parallel: {train.parallel!r} is not built yet; allowed: {', '.join(PARALLELS)}; "
            f"for several processes take ddp"
        )
    if train.parallel == "single" and run.processes > 1:
        found.append(
            f"run.processes: {run.processes} processes × train.parallel: 'single' would train that many models; "
            f"allowed: 1; for several processes: train.parallel: ddp"
        )
    if train.device == "cuda" and 0 < machine.cuda_devices < run.processes:
        found.append(
            f"run.processes: {run.processes} is more than the GPUs visible here ({machine.cuda_devices}); "
            f"allowed: 1 to {machine.cuda_devices}; CUDA_VISIBLE_DEVICES chooses them"
        )
    if train.batch_size % run.processes:
        near = train.batch_size - train.batch_size % run.processes
        found.append(
            f"train.batch_size: {train.batch_size} does not divide by run.processes ({run.processes}); "
            f"allowed: a multiple of {run.processes}, such as {near or run.processes}"
        )
    for key, (low, high) in (("crop_scale", train.crop_scale), ("crop_ratio", train.crop_ratio)):
        if low > high:
            found.append(f"train.{key}: [{low}, {high}] is the wrong way round; allowed: [least, most]")
    if train.eval_crop > train.eval_resize:
        found.append(
            f"train.eval_crop: {train.eval_crop} does not fit into train.eval_resize ({train.eval_resize}); "
            f"allowed: up to {train.eval_resize}"
        )
    if train.nesterov and train.momentum == 0:
        found.append("train.nesterov: true needs momentum (train.momentum: 0); allowed: false, or train.momentum > 0")
    if train.warmup_epochs > train.epochs:
        found.append(
            f"train.warmup_epochs: {train.warmup_epochs} is longer than the training; "
            f"allowed: 0 to train.epochs ({train.epochs})"
        )
    return found


def _data(params: Params) -> list[str]:
    split, found = params.split, []
    parts = split.fractions
    if not math.isclose(parts.train + parts.val + parts.test, 1, abs_tol=1e-9):
        found.append(
            f"split.fractions: {parts.train} + {parts.val} + {parts.test} is not 1; "
            f"allowed: three shares that sum to 1, such as 0.8, 0.1, 0.1"
        )
    if split.fold >= split.folds:
        found.append(f"split.fold: {split.fold} is not one of {split.folds} folds; allowed: 0 to {split.folds - 1}")
    if split.folds > 1 and not math.isclose(parts.test, 1 / split.folds, abs_tol=1e-9):
        found.append(
            f"split.fractions.test: {parts.test} with split.folds: {split.folds} would not test every picture once; "
            f"allowed: {1 / split.folds!r}, or split.folds: 1"
        )
    return found
