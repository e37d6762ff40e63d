"""Parallel coordinates as inline SVG: one axis per setting, the last one for the result, and one line per trial."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.reporting import markup
from pipeline.reporting.markup import text

STEP, MARGIN, HEIGHT = 150, 84, 330  # units between two axes, beside the outer ones, and of the drawing
TOP, BOTTOM = 48, 300  # ends of the axes
MOST_TICKS = 12  # values of a list that are written
PHONE, ROW, SIDE = 360, 84, 18  # for a phone: the width, units between two axes, and beside an axis
MOST_LETTERS = 42  # of all values of a list that are written below an axis of a phone
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


def for_every_screen(anchor: str, title: str, scales: Sequence[Scale], lines: Sequence[str]) -> str:
    """The drawing for a desktop, and the one for a phone. A style shows the one that suits."""
    large, small = drawn(anchor, title, scales, lines), drawn_on_a_phone(f"{anchor}-phone", title, scales, lines)
    return f'<div class="desktop">\n{markup.wide(title, large)}\n</div>\n<div class="phone">\n{small}\n</div>'


def drawn(anchor: str, title: str, scales: Sequence[Scale], lines: Sequence[str]) -> str:
    """The drawing. `lines`: what each line is; the first is the best, and the last is drawn first."""
    width = 2 * MARGIN + STEP * (len(scales) - 1)
    parts = [_axis(number, scale) for number, scale in enumerate(scales)]
    points = [[(MARGIN + STEP * k, _y(value)) for value in scale.values] for k, scale in enumerate(scales)]
    parts += _lines(points, lines)
    parts += [_labels(number, scale) for number, scale in enumerate(scales)]
    style = f"min-width: {width}px; max-width: {LARGEST * width:g}px"
    return _figure(anchor, title, scales, lines, parts, f'style="{style}" viewBox="0 0 {width} {HEIGHT}"')


def drawn_on_a_phone(anchor: str, title: str, scales: Sequence[Scale], lines: Sequence[str]) -> str:
    """The same with the axes one below the other, as wide as a phone."""

    def x(share: float) -> float:
        return round(SIDE + (PHONE - 2 * SIDE) * share, 1)

    parts = []
    for number, scale in enumerate(scales):
        y = 28 + ROW * number
        marks = "".join(f"M{x(at):g} {y - 4}L{x(at):g} {y + 4}" for at, _ in scale.ticks)
        parts.append(f'<path class="grid" d="M{SIDE} {y}L{PHONE - SIDE} {y}{marks}"/>')
    parts += _lines([[(x(v), 28 + ROW * k) for v in scale.values] for k, scale in enumerate(scales)], lines)
    for number, scale in enumerate(scales):
        y, letters = 28 + ROW * number, MOST_LETTERS // len(scale.ticks)
        parts.append(f'<text class="haloed title" x="{SIDE}" y="{y - 12}">{text(scale.title)}</text>')
        for at, value in scale.ticks:
            short = value if len(value) <= letters else f"{value[: max(letters - 1, 0)]}…"
            anchored = "start" if at == 0 else "end" if at == 1 else "middle"
            place = f'x="{x(at):g}" y="{y + 17}" text-anchor="{anchored}"'
            parts.append(f'<text class="haloed" {place}>{text(short)}</text>')
    return _figure(anchor, title, scales, lines, parts, f'viewBox="0 0 {PHONE} {ROW * len(scales) - 28}"')


def _lines(points: Sequence[Sequence[tuple[float, float]]], lines: Sequence[str]) -> Iterator[str]:
    """The lines, from axis to axis. `points`: of each axis, one for each line."""
    for number in reversed(range(len(lines))):
        opacity = 1 - (1 - FAINTEST) * number / max(len(lines) - 1, 1)
        kind = "line c1" if number == 0 else f'line c0" stroke-opacity="{opacity:.2f}'
        route = "L".join(f"{x:g} {y:g}" for x, y in (axis[number] for axis in points))
        yield f'<path class="{kind}" d="M{route}"><title>{text(lines[number])}</title></path>'


def _figure(
    anchor: str, title: str, scales: Sequence[Scale], lines: Sequence[str], parts: Sequence[str], size: str
) -> str:
    """The drawing, with its title and description for those who cannot see it."""
    described = f"{title}: {len(lines):,} trials over {', '.join(scale.title for scale in scales)}. Best: {lines[0]}."
    body = "\n".join(parts)
    return (
        f'<svg {size} role="img" aria-labelledby="{anchor}-t {anchor}-d">\n<title id="{anchor}-t">{text(title)}</title>'
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
