"""The page about a sweep: its best trial, a drawing of settings and results, and a table of all trials.

Its drawing has parallel coordinates: one axis per setting, the last one for the result, and one line per trial.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config import document
from pipeline.evaluation import metrics
from pipeline.evaluation.metrics import Share
from pipeline.reporting import charts, rendering
from pipeline.reporting.rendering import Html, escape
from pipeline.studies import trials
from pipeline.studies.ranges import Range, Sweep
from pipeline.studies.trials import TrialResult

RESULT = "validation accuracy"
DRAWING = "Settings and validation accuracy"
LEAST_LINES = 3  # settings for the drawing with lines
MOST_DOTS = 24  # trials
MOST_TICKS = 12  # values of a list that are written
MOST_LETTERS = 42  # of all values of a list that are written below an axis; of the settings of a trial
WIDTH, ROW, SIDE, FIRST = 360, 84, 18, 28  # units: width, between two axes, beside and above the first one
LARGEST = 540  # pixels of the width: it would else fill a wide page
FAINTEST = 0.25  # opacity of the line of the worst trial
TICK = 4  # half of its length


def page(sweep: Sweep, best_first: Sequence[TrialResult], images: int, conclusion: Sequence[str], command: str) -> str:
    """The page as HTML. `images`: of the validation. `conclusion`: on the best trial; `command` takes it over."""
    lines = _drawing(_scales(sweep, best_first, images), _lines(best_first)) if len(sweep.axes) >= LEAST_LINES else None
    return rendering.page(
        "sweep.html.jinja",
        sweep=sweep,
        keys=[_short(key) for key in sweep.axes],
        conclusion=conclusion,
        command=command,
        lines=lines,
        dots=charts.intervals("dots", f"{RESULT.capitalize()} with its 95\u00a0% interval", _dots(best_first, images)),
        most_dots=MOST_DOTS,
        result=RESULT,
        trials=[
            _row(rank, result, list(sweep.axes))
            for rank, result in zip(trials.ranks(best_first), best_first, strict=True)
        ],
    )


def _short(key: str) -> str:
    return key.removeprefix("train.")


def _row(rank: str, result: TrialResult, keys: Sequence[str]) -> dict[str, object]:
    """A trial as a row of the table."""
    accuracy, loss, epoch = trials.figure_cells(result)
    return {
        "rank": rank,
        "number": result.trial.number,
        "accuracy": accuracy,
        "settings": [document.value_text(result.trial.values[key]) for key in keys],
        "loss": loss,
        "epoch": epoch,
        "experiment": result.experiment,
    }


def _dots(best_first: Sequence[TrialResult], images: int) -> list[tuple[str, list[Share]]]:
    """The settings and the validation accuracy of the best trials, in the order of their numbers."""
    shown = [result for result in best_first if result.figures][:MOST_DOTS]
    rows = []
    for result in sorted(shown, key=lambda result: result.trial.number):
        name = " ".join(f"{_short(key)}={document.value_text(value)}" for key, value in result.trial.values.items())
        short = name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
        rows.append((short, [metrics.share(round(result.figures[0].val_accuracy * images), images)]))
    return rows


# ---- the content of the drawing ----


@dataclass(frozen=True)
class Scale:
    """The positions of values on an axis, from 0 (left) to 1, and the labels below it."""

    title: str
    ticks: Sequence[tuple[float, str]]
    values: Sequence[float]  # of each line


def _scales(sweep: Sweep, best_first: Sequence[TrialResult], images: int) -> list[Scale]:
    """An axis for each setting, and one for the result, with the trials that have a result."""
    finished = [result for result in best_first if result.figures]
    accuracies = [result.figures[0].val_accuracy for result in finished]
    scales = [_scale(sweep, key, [result.trial.values[key] for result in finished]) for key in sweep.axes]
    result = _of_numbers(RESULT, min(accuracies), max(accuracies), accuracies, log=False)
    decimals = max(math.ceil(math.log10(images)) - 2, 0)  # of percent: one image is 1 / images
    numbers = sorted({round(accuracy * images) for accuracy in accuracies})
    shown = dict.fromkeys([numbers[0], *numbers[1 : -1 : -(-len(numbers) // 3)], numbers[-1]])
    places = _of_numbers(RESULT, numbers[0], numbers[-1], list(shown), log=False).values
    ticks = [(at, f"{100 * n / images:.{decimals}f} %") for at, n in zip(places, shown, strict=True)]
    return [*scales, replace(result, ticks=ticks)]


def _scale(sweep: Sweep, key: str, values: Sequence[Any]) -> Scale:
    """The axis of a setting; `values`: of each line."""
    axis = sweep.axes[key]
    if isinstance(axis, Range):
        log = axis.scale == "log" and min(values) > 0  # the present value may lie outside
        return _of_numbers(_short(key), min(axis.start, *values), max(axis.to, *values), values, log=log)
    choices = [*axis, *(value for value in values if value not in axis)]  # at most one, the present value
    last, every = max(len(choices) - 1, 1), -(-len(choices) // MOST_TICKS)
    ticks = [(number / last, document.value_text(value)) for number, value in enumerate(choices) if number % every == 0]
    return Scale(_short(key), ticks, [choices.index(value) / last for value in values])


def _of_numbers(title: str, low: float, high: float, values: Sequence[float], *, log: bool) -> Scale:
    """An axis of numbers from `low` to `high`."""

    def at(value: float) -> float:
        if low == high:
            return 0.5
        if log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    inner = [low * (high / low) ** (k / 4) if log else low + (high - low) * k / 4 for k in (1, 2, 3)]
    ticks = [(at(value), f"{value:.3g}") for value in dict.fromkeys([low, *inner, high])]
    return Scale(title, ticks, [at(value) for value in values])


def _lines(best_first: Sequence[TrialResult]) -> list[str]:
    """The title of each line: the best first."""
    return [
        f"trial {result.trial.number}: {trials.describe(result.trial.values)}: {result.figures[0].val_accuracy:.4f}"
        for result in best_first
        if result.figures
    ]


# ---- the drawing ----


def _at(axis: int, share: float) -> tuple[float, float]:
    """The position of a share of the length of an axis. The axes are one below the other, as wide as a phone."""
    return SIDE + (WIDTH - 2 * SIDE) * share, FIRST + ROW * axis


def _drawing(scales: Sequence[Scale], lines: Sequence[str]) -> Html:
    parts = [part for axis, scale in enumerate(scales) for part in _axis(axis, scale)]
    for number in reversed(range(len(lines))):  # the worst first and faintest
        opacity = 1 - (1 - FAINTEST) * number / max(len(lines) - 1, 1)
        kind = "line c1" if number == 0 else f'line c0" stroke-opacity="{opacity:.2f}'
        route = charts.route(_at(axis, scale.values[number]) for axis, scale in enumerate(scales))
        parts.append(f'<path class="{kind}" d="{route}"><title>{escape(lines[number])}</title></path>')
    parts += [part for axis, scale in enumerate(scales) for part in _labels(axis, scale)]
    over = ", ".join(scale.title for scale in scales)
    description = f"{DRAWING}: {len(lines):,} trials over {over}. Best: {lines[0]}."
    size = f'style="max-width: {LARGEST}px" viewBox="0 0 {WIDTH} {ROW * len(scales) - FIRST}"'
    return charts.svg("lines", DRAWING, description, parts, size)


def _axis(axis: int, scale: Scale) -> Iterator[str]:
    """An axis with its ticks."""
    ticks = [_at(axis, share) for share, _ in scale.ticks]
    strokes = [[_at(axis, 0), _at(axis, 1)], *([(x, y - TICK), (x, y + TICK)] for x, y in ticks)]
    yield f'<path class="grid" d="{"".join(map(charts.route, strokes))}"/>'


def _labels(axis: int, scale: Scale) -> Iterator[str]:
    """The title of an axis, above it, and its values, below it."""
    letters = MOST_LETTERS // len(scale.ticks)
    yield charts.label(SIDE, FIRST + ROW * axis - 12, scale.title, "start", "haloed title")
    for share, value in scale.ticks:
        x, y = _at(axis, share)
        short = value if len(value) <= letters else f"{value[: max(letters - 1, 0)]}…"
        yield charts.label(x, y + 17, short, "start" if share == 0 else "end" if share == 1 else "middle", "haloed")
