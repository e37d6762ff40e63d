"""The page about a sweep: its best trial, a drawing of settings and results, and a table of all trials.

Its drawing has parallel coordinates: one axis per setting, the last one for the result, and one line per trial.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.reporting import charts, rendering
from pipeline.reporting.rendering import Html, escape
from pipeline.reruns import trials
from pipeline.reruns.ranges import Range, Sweep
from pipeline.reruns.trials import TrialResult

RESULT = "validation accuracy"
DRAWING = "Settings and validation accuracy"
STEP, MARGIN, HEIGHT = 150, 84, 330  # units between two axes, beside the outer ones, and of the drawing
TOP, BOTTOM = 48, 300  # ends of the axes
MOST_TICKS = 12  # values of a list that are written
PHONE, ROW, SIDE, FIRST = 360, 84, 18, 28  # for a phone: width, units between two axes, beside and above the first one
MOST_LETTERS = 42  # of all values of a list that are written below an axis of a phone
LARGEST = 1.5  # times its units, in pixels: a drawing of two axes would else fill a wide page
FAINTEST = 0.25  # opacity of the line of the worst trial
TICK = 4  # half of its length

Place = Callable[[int, float], tuple[float, float]]  # axis and share of its length → position


def page(sweep: Sweep, best_first: Sequence[TrialResult], conclusion: Sequence[str], command: str) -> str:
    """The page as HTML. `conclusion`: sentences about the best trial; `command` takes it over."""
    scales, lines = _scales(sweep, best_first), _lines(best_first)
    return rendering.page(
        "sweep.html.jinja",
        sweep=sweep,
        keys=[_short(key) for key in sweep.axes],
        conclusion=conclusion,
        command=command,
        drawing=DRAWING,
        on_a_desktop=_on_a_desktop(scales, lines),
        on_a_phone=_on_a_phone(scales, lines),
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
        "settings": [trials.as_yaml(result.trial.values[key]) for key in keys],
        "loss": loss,
        "epoch": epoch,
        "experiment": result.experiment,
    }


# ---- the content of the drawing ----


@dataclass(frozen=True)
class Scale:
    """The positions of values on an axis, from 0 (below, or left) to 1, and the labels beside it."""

    title: str
    ticks: Sequence[tuple[float, str]]
    values: Sequence[float]  # of each line


def _scales(sweep: Sweep, best_first: Sequence[TrialResult]) -> list[Scale]:
    """An axis for each setting, and one for the result, with the trials that have a result."""
    finished = [result for result in best_first if result.figures]
    accuracies = [result.figures[0].val_accuracy for result in finished]
    scales = [_scale(sweep, key, [result.trial.values[key] for result in finished]) for key in sweep.axes]
    return [*scales, _of_numbers(RESULT, min(accuracies), max(accuracies), accuracies, log=False)]


def _scale(sweep: Sweep, key: str, values: Sequence[Any]) -> Scale:
    """The axis of a setting; `values`: of each line."""
    axis = sweep.axes[key]
    if isinstance(axis, Range):
        log = axis.scale == "log" and min(values) > 0  # the present value may lie outside
        return _of_numbers(_short(key), min(axis.start, *values), max(axis.to, *values), values, log=log)
    choices = [*axis, *(value for value in values if value not in axis)]  # at most one, the present value
    indices = [choices.index(value) for value in values]
    return _of_names(_short(key), [trials.as_yaml(value) for value in choices], indices)


def _of_names(title: str, names: Sequence[str], indices: Sequence[int]) -> Scale:
    """An axis of values without a distance; `indices`: the number of the value of each line."""
    last = max(len(names) - 1, 1)
    every = -(-len(names) // MOST_TICKS)
    ticks = [(number / last, name) for number, name in enumerate(names) if number % every == 0]
    return Scale(title, ticks, [number / last for number in indices])


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


def _on_a_desktop(scales: Sequence[Scale], lines: Sequence[str]) -> Html:
    """The axes side by side. Their titles are above in turn in two heights, because they are long."""

    def place(axis: int, share: float) -> tuple[float, float]:
        return MARGIN + STEP * axis, BOTTOM - (BOTTOM - TOP) * share

    def labels(axis: int, scale: Scale) -> Iterator[str]:
        yield charts.label(MARGIN + STEP * axis, 16 if axis % 2 else 32, scale.title, "middle")
        for share, value in scale.ticks:
            x, y = place(axis, share)
            yield charts.label(x + 7, y + 4, value, "start", "haloed")

    width = 2 * MARGIN + STEP * (len(scales) - 1)
    size = f'style="min-width: {width}px; max-width: {LARGEST * width:g}px" viewBox="0 0 {width} {HEIGHT}"'
    parts = [*_axes(scales, place, (TICK, 0)), *_routes(scales, lines, place), *_each(scales, labels)]
    return _svg("lines", scales, lines, parts, size)


def _on_a_phone(scales: Sequence[Scale], lines: Sequence[str]) -> Html:
    """The same with the axes one below the other, as wide as a phone."""

    def place(axis: int, share: float) -> tuple[float, float]:
        return SIDE + (PHONE - 2 * SIDE) * share, FIRST + ROW * axis

    def labels(axis: int, scale: Scale) -> Iterator[str]:
        letters = MOST_LETTERS // len(scale.ticks)
        yield charts.label(SIDE, FIRST + ROW * axis - 12, scale.title, "start", "haloed title")
        for share, value in scale.ticks:
            x, y = place(axis, share)
            short = value if len(value) <= letters else f"{value[: max(letters - 1, 0)]}…"
            yield charts.label(x, y + 17, short, "start" if share == 0 else "end" if share == 1 else "middle", "haloed")

    parts = [*_axes(scales, place, (0, TICK)), *_routes(scales, lines, place), *_each(scales, labels)]
    return _svg("lines-phone", scales, lines, parts, f'viewBox="0 0 {PHONE} {ROW * len(scales) - FIRST}"')


def _axes(scales: Sequence[Scale], place: Place, tick: tuple[float, float]) -> Iterator[str]:
    """The axes with their ticks, which reach so far to both sides."""
    for axis, scale in enumerate(scales):
        at = [place(axis, share) for share, _ in scale.ticks]
        marks = [[(x - tick[0], y - tick[1]), (x + tick[0], y + tick[1])] for x, y in at]
        ends = [place(axis, 0), place(axis, 1)]
        yield f'<path class="grid" d="{"".join(map(charts.route, [ends, *marks]))}"/>'


def _routes(scales: Sequence[Scale], lines: Sequence[str], place: Place) -> Iterator[str]:
    """The lines from axis to axis: the worst first and faintest."""
    for number in reversed(range(len(lines))):
        opacity = 1 - (1 - FAINTEST) * number / max(len(lines) - 1, 1)
        kind = "line c1" if number == 0 else f'line c0" stroke-opacity="{opacity:.2f}'
        route = charts.route(place(axis, scale.values[number]) for axis, scale in enumerate(scales))
        yield f'<path class="{kind}" d="{route}"><title>{escape(lines[number])}</title></path>'


def _each(scales: Sequence[Scale], labels: Callable[[int, Scale], Iterator[str]]) -> Iterator[str]:
    return (label for axis, scale in enumerate(scales) for label in labels(axis, scale))


def _svg(anchor: str, scales: Sequence[Scale], lines: Sequence[str], parts: Sequence[str], size: str) -> Html:
    over = ", ".join(scale.title for scale in scales)
    description = f"{DRAWING}: {len(lines):,} trials over {over}. Best: {lines[0]}."
    return charts.svg(anchor, DRAWING, description, parts, size)
