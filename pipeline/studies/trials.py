"""Trials of a sweep: their params, names, results, their rank by validation, and what is said of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.base.errors import Fault, UserError, raise_if_any
from pipeline.checks.machine import Machine
from pipeline.config import document, params
from pipeline.config.params import Params
from pipeline.evaluation import metrics
from pipeline.evaluation.figures import EvalFigures, TrainFigures
from pipeline.studies import runner
from pipeline.studies.ranges import SECTION, Sweep, Trial

LARGE = 1e5  # a loss from here on is shown with an exponent: a training that goes wrong has up to 10 to the power of 38
FIGURES = ("val_accuracy", "val_loss", "exported_epoch")


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial."""

    trial: Trial
    figures: tuple[TrainFigures, ...]  # one, or none if it has not finished
    folder: Path  # of its params, dvc.lock and figures, or of its log if it failed


def check(config: Params, trial_values: Sequence[Mapping[str, Any]], machine: Machine | None) -> None:
    """Raise UserError with the faults of the params that cannot run on this machine; None: on any machine."""
    raise_if_any(
        replace(fault, reason=f"{fault.reason}; in the trial {describe(values)}".removeprefix("; "))
        for values in trial_values
        for fault in runner.faults(params.with_values(config, values), machine)
    )


def describe(values: Mapping[str, Any]) -> str:
    """The values of a trial in one line."""
    return " ".join(f"{key}={document.value_text(value)}" for key, value in values.items())


def weights(config: Params, sweep: Sweep) -> list[str]:
    """The user's own weights files that trials start from. Raises UserError if one is missing."""
    swept = sweep.axes.get("train.weights")
    values = {config.train.weights, *(swept if isinstance(swept, tuple) else ())}
    paths = sorted(values - {"none", "imagenet"})
    if missing := [path for path in paths if not Path(path).is_file()]:
        value = f"{', '.join(missing)} not found"
        raise UserError(Fault("train.weights", value, "missing", remedy="put the file there"))
    return paths


def name(study: str, word: str) -> str:
    """The beginning of the name of a run. `word`: what it is in this study."""
    letters = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in study).strip("-")
    return f"{letters or 'sweep'}-{word}"


def sort_by_rank(results: Sequence[TrialResult]) -> list[TrialResult]:
    """The best first: by validation accuracy, then by validation loss, then by number; the failed ones last."""

    def key(result: TrialResult) -> tuple[bool, float, float, int]:
        accuracy, loss = next(((one.val_accuracy, one.val_loss) for one in result.figures), (0.0, 0.0))
        return not result.figures, -accuracy, loss, result.trial.number

    return sorted(results, key=key)


def ranks(best_first: Sequence[TrialResult]) -> list[str]:
    """The rank of each trial; empty if it has failed."""
    return [f"{rank}" if result.figures else "" for rank, result in enumerate(best_first, start=1)]


def table(best_first: Sequence[TrialResult]) -> tuple[list[str], list[list[object]]]:
    """The header and the rows of metrics/sweep.csv."""
    rows = [
        [rank, result.trial.number, "" if result.figures else "failed", *result.trial.settings,
         *([getattr(figures, name) for figures in result.figures for name in FIGURES] or [""] * len(FIGURES))]
        for rank, result in zip(ranks(best_first), best_first, strict=True)
    ]  # fmt: skip
    return ["rank", "trial", "state", *best_first[0].trial.values, *FIGURES], rows


def text_table(best_first: Sequence[TrialResult]) -> list[list[str]]:
    """The head and the rows of the table for a terminal and for the page."""
    keys = [key.removeprefix(SECTION) for key in best_first[0].trial.values]
    rows = [["rank", "trial", "validation accuracy", *keys, "validation loss", "exported epoch"]]
    for rank, result in zip(ranks(best_first), best_first, strict=True):
        accuracy, loss, epoch = "failed", "", ""
        for one in result.figures:
            loss = f"{one.val_loss:.4f}" if one.val_loss < LARGE else f"{one.val_loss:.3g}"
            accuracy, epoch = f"{one.val_accuracy:.4f}", f"{one.exported_epoch}"
        rows.append([rank or "–", f"{result.trial.number}", accuracy, *result.trial.settings, loss, epoch])
    return rows


def conclusion(
    best_first: Sequence[TrialResult], present: Mapping[str, Any], on_test: EvalFigures, images: Mapping[str, int]
) -> list[str]:
    """Sentences about the best trial of a sweep. `present`: the values before the sweep."""
    best, (of_best,) = best_first[0], best_first[0].figures
    low, high = metrics.wilson(round(of_best.val_accuracy * images["val"]), images["val"])
    count = sum(bool(result.figures) for result in best_first)
    selection = (
        f"This figure is too good: it is the highest of {count} on the same images. Trials inside its interval may be "
        f"as good."
    )
    return [
        f"Best of {count}: trial {best.trial.number}, {describe(best.trial.values)}: validation accuracy "
        f"{of_best.val_accuracy:.4f} (95 % interval {low:.4f} to {high:.4f}, {images['val']:,} images).",
        selection if count > 1 else "It is the only trial with a result.",
        gain(best, next(result for result in best_first if result.trial.values == present)),
        f"Test accuracy, measured once, of this trial alone: {on_test.accuracy:.4f} (95 % interval "
        f"{on_test.accuracy_low:.4f} to {on_test.accuracy_high:.4f}, {images['test']:,} images).",
    ]


def gain(best: TrialResult, present: TrialResult) -> str:
    """A sentence with the gain of validation accuracy of the best trial over the present settings."""
    before = f"the settings of {params.FILE} (trial {present.trial.number}"
    if best is present:
        return f"No trial is better than {before})."
    if not present.figures:
        return f"The gain over {before}) is not known: that trial has no result."
    old, new = present.figures[0].val_accuracy, best.figures[0].val_accuracy
    test = "To take the trial over is also to test on the same images whether that is more than chance"
    return f"Gain over {before}: {old:.4f}): {100 * (new - old):+.1f} points of validation accuracy. {test}."
