"""Trials of a sweep: their params, names and results, which is the best by validation, and each as an experiment."""

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.config import params, validity
from pipeline.config.machine import Machine
from pipeline.config.params import Params
from pipeline.data.layout import display_width, pad
from pipeline.evaluation import figures, metrics
from pipeline.evaluation.figures import EvalFigures, TrainFigures
from pipeline.reruns.ranges import Sweep, Trial
from pipeline.training import identity
from pipeline.versioning import dvc_lock, programs

LETTERS = 8  # hexadecimal digits of the digest in a name
LARGE = 1e5  # a loss from here on is shown with an exponent: a training that goes wrong has up to 10 to the power of 38
FIGURES = ("val_accuracy", "val_loss", "exported_epoch")


@dataclass(frozen=True)
class Done:
    """A trial that has ended."""

    trial: Trial
    experiment: str  # its name
    results: tuple[TrainFigures, ...]  # one, or none if it has failed

    @property
    def figures(self) -> tuple[object, ...]:
        return tuple(getattr(self.results[0], name) for name in FIGURES) if self.results else ("",) * len(FIGURES)


def check(config: Params, chosen: Sequence[Mapping[str, Any]], machine: Machine) -> None:
    """Raise UserError with the faults of the params that cannot run on this machine."""
    faults = [
        replace(fault, reason=f"{fault.reason}; in the trial {described(values)}".removeprefix("; "))
        for values in chosen
        for fault in validity.faults(params.with_values(config, values), machine)
    ]
    if faults:
        raise UserError(*faults)


def described(values: Mapping[str, Any]) -> str:
    """The values of a trial in one line."""
    return " ".join(f"{key}={shown(value)}" for key, value in values.items())


def shown(value: object) -> str:
    """A value as params.yaml has it."""
    return json.dumps(value) if isinstance(value, bool | list | tuple | None) else str(value)


def data(config: Params) -> dict[str, str]:
    """What all trials share besides the params: the hashes of the split and of the packed images, and of the code."""
    outs = {path: md5 for claims in dvc_lock.read().values() for path, md5 in claims["outs"].items()}
    return {path: outs[path] for path in (config.paths.split, config.paths.packed)} | identity.code("train")


def weights(config: Params, sweep: Sweep) -> list[str]:
    """The user's own weights files that trials start from. Raises UserError if one is missing."""
    swept = sweep.axes.get("train.weights")
    values = (config.train.weights, *(swept if isinstance(swept, tuple) else ()))
    paths = sorted({path for value in values for path in own_weights(value)})
    if missing := [path for path in paths if not Path(path).is_file()]:
        raise UserError(
            Fault("train.weights", f"{', '.join(missing)} not found", "missing", remedy="put the file there")
        )
    return paths


def digest(config: Params, shared: Mapping[str, str], own: Mapping[str, str]) -> str:
    """The identity of a training: what DVC's run cache compares, as settings, code, the lock of the packages, and data.

    `shared` is `data`; `own`: the hashes of the user's own weights files, by path.
    """
    return identity.digest(
        {
            "settings": identity.settings(config, ["train"]),
            "weights": [own[path] for path in own_weights(config.train.weights)],
            "shared": dict(shared),
        }
    )


def name(study: str, word: str, digest: str) -> str:
    """The name of an experiment. `word`: what it is in this study."""
    letters = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in study).strip("-")
    return f"{letters or 'sweep'}-{word}-{digest[:LETTERS]}"


def own_weights(weights: str) -> list[str]:
    """The user's own file that a training starts from, if this value of train.weights is one."""
    return [] if weights in ("none", "imagenet") else [weights]


def publish(experiment: str, folder: Path, config: Params) -> None:
    """Let DVC know what a folder has of a training, as an experiment of the last commit with this name.

    The folder has the layout of the project. The files of the user and Git's index stay as they are. Where the project
    is only a part of a repository, or without a commit, there is no experiment.
    """
    environ = {**programs.environment(), "GIT_INDEX_FILE": str((folder / ".index").absolute())}

    def git(*words: str) -> str:
        return programs.output("git", *words, environ=environ).strip()

    head = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=False).stdout.strip()
    if not commit or git("rev-parse", "--show-prefix"):
        return
    measured = [Path(config.paths.metrics) / name for name in figures.FILES.values()]
    own = [str(path) for path in (params.FILE, dvc_lock.LOCK, *measured) if (folder / path).is_file()]
    git("read-tree", commit)
    git("update-index", "--force-remove", *map(str, measured))  # those of the commit are of another model
    there = ("-C", str(folder), f"--git-dir={git('rev-parse', '--absolute-git-dir')}", "--work-tree=.")
    git(*there, "add", "--force", "--", *own)
    author = ("-c", "user.name=perennial", "-c", "user.email=perennial@localhost")
    new = git(*author, "commit-tree", "-p", commit, "-m", experiment, git("write-tree"))
    git("update-ref", f"refs/exps/{commit[:2]}/{commit[2:]}/{experiment}", new)
    files.remove(folder / ".index")


def ranked(ended: Sequence[Done]) -> list[Done]:
    """The best first: by validation accuracy, then by validation loss, then by number; the failed ones last."""

    def key(done: Done) -> tuple[bool, float, float, int]:
        if not done.results:
            return True, 0.0, 0.0, done.trial.number
        return False, -done.results[0].val_accuracy, done.results[0].val_loss, done.trial.number

    return sorted(ended, key=key)


def ranks(best_first: Sequence[Done]) -> list[str]:
    """The rank of each trial; empty if it has failed."""
    return [f"{rank}" if done.results else "" for rank, done in enumerate(best_first, start=1)]


def table(best_first: Sequence[Done]) -> tuple[list[str], list[list[object]]]:
    """The header and the rows of metrics/sweep.csv."""
    keys = list(best_first[0].trial.values)
    rows = [
        [rank, done.trial.number, done.experiment, "" if done.results else "failed",
         *(shown(done.trial.values[key]) for key in keys), *done.figures]
        for rank, done in zip(ranks(best_first), best_first, strict=True)
    ]  # fmt: skip
    return ["rank", "trial", "experiment", "state", *keys, *FIGURES], rows


def shown_table(best_first: Sequence[Done]) -> str:
    """The results as lines of a terminal."""
    head = ["", "trial", "validation", "loss", "epoch", "settings"]
    rows = [
        [f"{rank}." if rank else "–", f"{done.trial.number}", *short(done), described(done.trial.values)]
        for rank, done in zip(ranks(best_first), best_first, strict=True)
    ]
    widths = [max(display_width(row[column]) for row in [head, *rows]) for column in range(len(head) - 1)]
    lines = [
        "  ".join([pad(cell, width) for cell, width in zip(row, widths, strict=False)] + row[-1:])
        for row in [head, *rows]
    ]
    return "\n".join(line.rstrip() for line in lines)


def short(done: Done) -> list[str]:
    """The figures of a trial as a table shows them."""
    if not done.results:
        return ["failed", "", ""]
    (one,) = done.results
    loss = f"{one.val_loss:.4f}" if one.val_loss < LARGE else f"{one.val_loss:.3g}"
    return [f"{one.val_accuracy:.4f}", loss, f"{one.exported_epoch}"]


def verdict(
    best_first: Sequence[Done], present: Mapping[str, Any], tested: EvalFigures, images: Mapping[str, int]
) -> list[str]:
    """What the sweep says about its best trial, in sentences. `present`: the values before the sweep."""
    best, (result,) = best_first[0], best_first[0].results
    low, high = metrics.wilson(round(result.val_accuracy * images["val"]), images["val"])
    count = sum(bool(done.results) for done in best_first)
    selected = (
        f"This figure is too good: it is the highest of {count} on the same images. Trials inside its interval may be "
        f"as good."
    )
    return [
        f"Best of {count}: trial {best.trial.number}, {described(best.trial.values)}: validation accuracy "
        f"{result.val_accuracy:.4f} (95 % interval {low:.4f} to {high:.4f}, {images['val']:,} images).",
        selected if count > 1 else "It is the only trial with a result.",
        gain(best, next(done for done in best_first if done.trial.values == present), images["val"]),
        f"Test accuracy, measured once, of this trial alone: {tested.accuracy:.4f} (95 % interval "
        f"{tested.accuracy_low:.4f} to {tested.accuracy_high:.4f}, {images['test']:,} images).",
    ]


def gain(best: Done, present: Done, images: int) -> str:
    """How much better the best trial is than the present settings on the validation images, in a sentence."""
    before = f"the settings of {params.FILE} (trial {present.trial.number}"
    if best is present:
        return f"No trial is better than {before})."
    if not present.results:
        return f"The gain over {before}) is not known: that trial has no result."
    old, new = present.results[0].val_accuracy, best.results[0].val_accuracy
    low, high = difference((round(old * images), images), (round(new * images), images))
    return (
        f"Gain over {before}: {old:.4f}): {100 * (new - old):+.1f} points of validation accuracy (95 % interval "
        f"{100 * low:+.1f} to {100 * high:+.1f}, as for two models on different images)."
    )


def difference(first: tuple[int, int], second: tuple[int, int]) -> tuple[float, float]:
    """The 95 % interval of the second share minus the first one [Newcombe 1998, method 10]; each: right, of all.

    It is for independent shares. Two models have the same images, which usually makes the true interval narrower.
    """
    p, q = first[0] / first[1], second[0] / second[1]
    (p_low, p_high), (q_low, q_high) = metrics.wilson(*first), metrics.wilson(*second)
    return q - p - math.hypot(q - q_low, p_high - p), q - p + math.hypot(q_high - q, p - p_low)
