"""Charts as inline SVG: text of a few kilobytes, the same bytes for the same numbers, no library and no JavaScript.

Colours are classes, which `style.css` defines for light and dark pages and for print: Okabe and Ito's palette, which
people with any kind of colour blindness can tell apart. Lines also differ in their dashes.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.evaluation.metrics import Share
from pipeline.reporting.rendering import Html, escape

WIDTH, HEIGHT = 380, 240  # units; on a phone one unit is about one pixel
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 30, 38  # margins of the plot
LEAST_ROW = 44  # the height of a row of intervals
MOST_POINTS = 400  # of a line; a longer one is thinned
FAR = 3  # a value beyond this many times the 90th percentile is left out, because it would flatten the others
LEGEND = (8, 94, 192)  # where its entries begin: two lines, and the exported epoch
LINE_CLASSES = ("line c0 solid", "line c1 dashed")  # of the first line and of the second one


@dataclass(frozen=True)
class Chart:
    """A drawing, its title, and a sentence about values outside of it."""

    title: str
    svg: Html
    note: str = ""


@dataclass(frozen=True)
class Line:
    """The values of one quantity, one per epoch. They may be infinite or not a number."""

    name: str
    values: Sequence[float]
    exported_epoch: int


@dataclass(frozen=True)
class Axis:
    """A linear scale: `low` is at `start`, in units of the drawing, and `high` is at `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The position of a value."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * share


def curves(anchor: str, title: str, lines: Sequence[Line], *, shares: bool, legend: bool = True) -> Chart:
    """One or two lines over the epochs, which begin at 1, with the exported epoch of each on it.

    `shares`: values from 0 to 1, shown as percent. Otherwise the axis begins at 0 and ends at the largest value.
    `legend`: short names above the plot, of lines of one training; longer ones belong beside the drawing.
    """
    epochs = max(len(line.values) for line in lines)
    top, note = (1.0, "") if shares else _top(lines)
    steps = _steps(top)
    x = Axis(min(1, epochs - 1), epochs, LEFT, WIDTH - RIGHT)  # one epoch alone is at the right end
    y = Axis(0, top if shares else max(top, steps[-1]), HEIGHT - BOTTOM, TOP)
    labels = [f"{100 * step:.0f} %" if shares else _short(step) for step in steps]
    parts = [
        *_grid(y, list(zip(steps, labels, strict=True))),
        *_ticks(x, _whole_steps(epochs)),
        label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, "epoch", "middle"),
    ]
    exported_epochs = dict.fromkeys(line.exported_epoch for line in lines)
    parts += [stroke("exported", (x(epoch), TOP), (x(epoch), HEIGHT - BOTTOM)) for epoch in exported_epochs]
    for number, line in enumerate(lines):
        epoch = line.exported_epoch
        parts += [_path(line, x, y, number), _dot(x(epoch), y, line.values[epoch - 1], number)]
        if legend:
            parts += _legend(line.name, LINE_CLASSES[number], number)
    exported = " and ".join(f"{epoch:,}" for epoch in exported_epochs)
    if legend:
        parts += _legend(f"exported: epoch {exported}", "exported", 2)
    ends = ", ".join(f"{line.name} {_number(line.values[line.exported_epoch - 1], shares)}" for line in lines)
    description = f"{title} over {epochs:,} epochs. At the exported epoch {exported}: {ends}."
    return _chart(anchor, title, description, parts, note)


def intervals(anchor: str, title: str, rows: Sequence[tuple[str, Sequence[Share]]]) -> Chart:
    """For each row (its name, and a share for each line) a dot at the share on a stroke as long as its interval."""
    ticks = _share_steps([share for _, row in rows for share in row])
    x = Axis(ticks[0][0], ticks[-1][0], LEFT / 2, WIDTH - RIGHT * 2)
    bottom = max(HEIGHT - BOTTOM, TOP + LEAST_ROW * sum(len(row) for _, row in rows))
    parts = [stroke("grid", (x(tick), TOP), (x(tick), bottom)) for tick, _ in ticks]
    parts += [label(x(tick), bottom + 15, text, "middle") for tick, text in ticks]
    height = (bottom - TOP) / len(rows)
    for place, (name, row) in enumerate(rows):
        top = TOP + height * place
        parts.append(label(x.start + 4, top + 14, name, "start", "haloed"))
        for number, share in enumerate(row):
            middle = top + 24 + (height - 24) * (number + 0.6) / len(row)
            center = x(share.share)
            parts.append(stroke(LINE_CLASSES[number], (x(share.low), middle), (x(share.high), middle)))
            parts.append(f'<circle class="dot c{number}" cx="{_round(center)}" cy="{_round(middle)}" r="5"/>')
            parts.append(label(center, middle - 8, _number(share.share, True), "middle", "haloed"))
    values = "; ".join(f"{name}: {', '.join(_number(share.share, True) for share in row)}" for name, row in rows)
    return _chart(anchor, title, f"{title}. {values}.", parts, height=round(bottom + BOTTOM))


def growth(anchor: str, title: str, unit: str, points: Sequence[tuple[int, Share]]) -> Chart:
    """A share for each number, such as one of images: a dot with its interval, and a line through the dots."""
    x = Axis(0, max(number for number, _ in points), LEFT, WIDTH - RIGHT)
    steps = _share_steps([share for _, share in points])
    y = Axis(steps[0][0], steps[-1][0], HEIGHT - BOTTOM, TOP)
    parts = [*_grid(y, steps), *_ticks(x, [(number, f"{number:,}") for number, _ in points])]
    parts.append(label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, unit, "middle"))
    parts += [stroke("line c0", (x(number), y(share.low)), (x(number), y(share.high))) for number, share in points]
    parts.append(f'<path class="line c0" d="{route((x(number), y(share.share)) for number, share in points)}"/>')
    parts += [_dot(x(number), y, share.share, 0) for number, share in points]
    values = "; ".join(f"{number:,}: {_number(share.share, True)}" for number, share in points)
    return _chart(anchor, title, f"{title}. {values}.", parts)


def bars(anchor: str, title: str, bins: Sequence[tuple[float, float, int, float]]) -> Chart:
    """Calibration: for each bin (low, high, images, accuracy) a bar as high as its accuracy, over the diagonal."""
    x, y = Axis(0, 1, LEFT, WIDTH - RIGHT), Axis(0, 1, HEIGHT - BOTTOM, TOP)
    fifths = [(k / 5, f"{20 * k} %") for k in range(6)]
    parts = [*_grid(y, fifths), *_ticks(x, fifths)]
    parts.append(label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, "the model's probability for its answer", "middle"))
    for low, high, _, accuracy in bins:
        left, right, head = x(low), x(high), y(accuracy)
        size = f'width="{_round(right - left - 1)}" height="{_round(max(y.start - head, 1))}"'
        parts.append(f'<rect class="bar" x="{_round(left + 0.5)}" y="{_round(min(head, y.start - 1))}" {size}/>')
    parts.append(stroke("diagonal", (x.start, y.start), (x.end, y.end)))
    parts += [_image_count(x((low + high) / 2), y(accuracy), images) for low, high, images, accuracy in bins]
    images = sum(count for _, _, count, _ in bins)
    description = f"{title}: {images:,} images in {len(bins)} bins. The dashed line is where a bar should end."
    return _chart(anchor, title, description, parts)


def svg(anchor: str, title: str, description: str, parts: Iterable[str], size: str) -> Html:
    """The drawing of these parts, with a title and a description for those who cannot see it. `size`: attributes."""
    body = "\n".join(part for part in parts if part)
    texts = f'<title id="{anchor}-t">{escape(title)}</title><desc id="{anchor}-d">{escape(description)}</desc>'
    return Html(f'<svg {size} role="img" aria-labelledby="{anchor}-t {anchor}-d">\n{texts}\n{body}\n</svg>')


def _chart(
    anchor: str, title: str, description: str, parts: Sequence[str], note: str = "", height: int = HEIGHT
) -> Chart:
    return Chart(title, svg(anchor, title, description, parts, f'viewBox="0 0 {WIDTH} {height}"'), note)


# ---- axes ----


def _top(lines: Sequence[Line]) -> tuple[float, str]:
    """The end of the axis of values, and a sentence about values that are beyond it or not finite."""
    finite = sorted(value for line in lines for value in line.values if math.isfinite(value))
    if not finite:
        return 1.0, "No value is a finite number."
    percentile = finite[len(finite) * 9 // 10 - (len(finite) >= 10)]
    top = finite[-1] if finite[-1] <= FAR * percentile else 1.25 * percentile
    outside = [
        f"{line.name}, epoch {epoch:,}: {_number(value, False)}"
        for line in lines
        for epoch, value in enumerate(line.values, start=1)
        if not value <= top
    ]
    more = f" and {len(outside) - 5:,} more" if len(outside) > 5 else ""
    return (top if top > 0 else 1.0), f"Outside the drawing: {'; '.join(outside[:5])}{more}." if outside else ""


def _steps(top: float) -> list[float]:
    """Round values from 0 on, four to seven of them, the last not below `top`."""
    unit = 1.0
    while unit > top:
        unit /= 10
    while unit * 10 <= top:
        unit *= 10
    step = next(part * unit for part in (0.2, 0.5, 1, 2) if part * unit * 6 >= top)
    return [round(step * k, 12) for k in range(math.ceil(top / step - 1e-9) + 1)]


def _share_steps(shares: Sequence[Share]) -> list[tuple[float, str]]:
    """Round shares around these intervals, with their words. No step is less than a point: few images carry no more."""
    low, high = min(share.low for share in shares), max(share.high for share in shares)
    step = next(step for step in (20, 10, 5, 2, 1) if 100 * (high - low) / step >= 2 or step == 1)
    numbers = range(math.floor(100 * low / step + 1e-9), math.ceil(100 * high / step - 1e-9) + 1)
    return [(number * step / 100, f"{number * step} %") for number in numbers]


def _whole_steps(epochs: int) -> list[tuple[float, str]]:
    """Whole epochs for the axis: the first and the last, and round ones between them that leave room for the last."""
    step, most = 1, 6 if epochs < 10_000 else 4  # long numbers need room
    while epochs / step > most:
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    inner = [k for k in range(step, epochs, step) if 1 < k <= epochs - step / 2]
    return [(k, f"{k:,}") for k in [1, *inner, *([epochs] if epochs > 1 else [])]]


def _grid(y: Axis, steps: Sequence[tuple[float, str]]) -> Iterator[str]:
    for step, text in steps:
        yield stroke("grid", (LEFT, y(step)), (WIDTH - RIGHT, y(step)))
        yield label(LEFT - 5, y(step) + 4, text, "end")


def _ticks(x: Axis, steps: Sequence[tuple[float, str]]) -> Iterator[str]:
    for step, text in steps:
        yield label(x(step), HEIGHT - BOTTOM + 15, text, "end" if step == x.high else "middle")


# ---- marks ----


def _path(line: Line, x: Axis, y: Axis, number: int) -> str:
    """A line through the values, with a gap at each that is not finite or lies beyond the axis."""
    points = list(enumerate(line.values, start=1))
    stride = -(-len(points) // MOST_POINTS)
    path, pen = "", "M"
    for epoch, value in [*points[:-1:stride], points[-1]]:
        if not (math.isfinite(value) and y.low <= value <= y.high):
            pen = "M"
            continue
        path += f"{pen}{_round(x(epoch))} {_round(y(value))}"
        pen = "L"
    return f'<path class="{LINE_CLASSES[number]}" d="{path}"/>' if path else ""


def _dot(left: float, y: Axis, value: float, number: int) -> str:
    if not y.low <= value <= y.high:
        return ""
    return f'<circle class="dot c{number}" cx="{_round(left)}" cy="{_round(y(value))}" r="4"/>'


def _legend(name: str, kind: str, number: int) -> Iterator[str]:
    """An entry of the legend above the plot: a short line of this kind, and its name."""
    left = LEGEND[number]
    yield stroke(kind, (left, 12), (left + 24, 12))
    yield label(left + 29, 16, name, "start")


def _image_count(middle: float, head: float, images: int) -> str:
    """The number of images above a bar; upright if it is long."""
    if images < 1000:
        return label(middle, head - 4, f"{images}", "middle", "count haloed")
    transform = f'transform="translate({_round(middle + 3.5)} {_round(max(head - 4, TOP + 30))}) rotate(-90)"'
    return f'<text class="count haloed" {transform}>{images:,}</text>'


def route(points: Iterable[tuple[float, float]]) -> str:
    """A line from point to point, for the attribute `d`."""
    return f"M{'L'.join(f'{_round(x)} {_round(y)}' for x, y in points)}"


def stroke(kind: str, begin: tuple[float, float], end: tuple[float, float]) -> str:
    """A straight line."""
    return f'<path class="{kind}" d="{route([begin, end])}"/>'


def label(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    """A text at a position."""
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{_round(x)}" y="{_round(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(step: float) -> str:
    """A round value of an axis in at most seven letters."""
    return f"{step:.1e}" if 0 < step < 0.001 else f"{step:g}"


def _number(value: float, shares: bool) -> str:
    if not math.isfinite(value):
        return "not a finite number"
    return f"{100 * value:.1f} %" if shares else f"{value:.4g}"


def _round(value: float) -> str:
    """A position in a tenth of a unit."""
    return f"{value:.1f}".removesuffix(".0")
