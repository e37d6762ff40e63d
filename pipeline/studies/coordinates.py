"""Parallel coordinates as inline SVG: one axis per setting, the last one for the result, and one line per trial."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.reporting.markup import text

STEP, MARGIN, HEIGHT = 150, 84, 330  # units between two axes, beside the outer ones, and of the drawing
TOP, BOTTOM = 48, 300  # ends of the axes
MOST_TICKS = 12  # values of a list that are written
LARGEST = 1.5  # times its units, in pixels: a drawing of two axes would else fill a wide page
FAINTEST = 0.25  # opacity of the line of the worst trial


@dataclass(frozen=True)
class Scale:
    """Where a value lies on an axis, from 0 (below) to 1, and the values that are written beside it."""

    title: str
    ticks: Sequence[tuple[float, str]]
    values: Sequence[float]  # of each line


def listed(title: str, names: Sequence[str], chosen: Sequence[int]) -> Scale:
    """An axis of values without a distance; `chosen`: the number of the value of each line."""
    last = max(len(names) - 1, 1)
    every = -(-len(names) // MOST_TICKS)
    ticks = [(number / last, name) for number, name in enumerate(names) if number % every == 0]
    return Scale(title, ticks, [number / last for number in chosen])


def numbers(title: str, low: float, high: float, values: Sequence[float], *, log: bool) -> Scale:
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


def drawn(anchor: str, title: str, scales: Sequence[Scale], lines: Sequence[str]) -> str:
    """The drawing. `lines`: what each line is; the first is the best, and the last is drawn first."""
    width = 2 * MARGIN + STEP * (len(scales) - 1)
    described = f"{title}: {len(lines):,} trials over {', '.join(scale.title for scale in scales)}. Best: {lines[0]}."
    parts = [_axis(number, scale) for number, scale in enumerate(scales)]
    for number in reversed(range(len(lines))):
        points = [(MARGIN + STEP * k, _y(scale.values[number])) for k, scale in enumerate(scales)]
        opacity = 1 - (1 - FAINTEST) * number / max(len(lines) - 1, 1)
        kind = "line c1" if number == 0 else f'line c0" stroke-opacity="{opacity:.2f}'
        route = "L".join(f"{x} {y:g}" for x, y in points)
        parts.append(f'<path class="{kind}" d="M{route}"><title>{text(lines[number])}</title></path>')
    parts += [_labels(number, scale) for number, scale in enumerate(scales)]
    body = "\n".join(parts)
    return (
        f'<svg style="min-width: {width}px; max-width: {LARGEST * width:g}px" viewBox="0 0 {width} {HEIGHT}" '
        f'role="img" aria-labelledby="{anchor}-t {anchor}-d">\n<title id="{anchor}-t">{text(title)}</title>'
        f'<desc id="{anchor}-d">{text(described)}</desc>\n{body}\n</svg>'
    )


def _y(share: float) -> float:
    """A position in tenths of a unit."""
    return round(BOTTOM - (BOTTOM - TOP) * share, 1)


def _axis(number: int, scale: Scale) -> str:
    x = MARGIN + STEP * number
    marks = "".join(f"M{x - 4} {_y(at):g}L{x + 4} {_y(at):g}" for at, _ in scale.ticks)
    return f'<path class="grid" d="M{x} {TOP}L{x} {BOTTOM}{marks}"/>'


def _labels(number: int, scale: Scale) -> str:
    """The title of an axis, above in turn in two heights because titles are long, and its values."""
    x = MARGIN + STEP * number
    values = "".join(
        f'<text class="haloed" x="{x + 7}" y="{_y(at) + 4:g}">{text(shown)}</text>' for at, shown in scale.ticks
    )
    return f'<text x="{x}" y="{16 if number % 2 else 32}" text-anchor="middle">{text(scale.title)}</text>{values}'
