"""Training on 1, 2, 4 and 8 devices: seconds per epoch, as a table and a plot.

    python -m benchmarks devices --device cuda

One device trains with `single`, several with `ddp` by torchrun. Each number of devices is a real run of the train
stage, twice; they take turns. The global batch is the same for all. Numbers of GPUs that this machine does not have are
left out. On a CPU there are 1 and 2 processes. The plot is devices_<device>.svg, beside the JSON.
"""

from collections.abc import Mapping

from benchmarks.harness import measuring
from benchmarks.speed import ways
from pipeline.base import files
from pipeline.reporting import charts
from pipeline.reporting.charts import Axis

NUMBERS = {"cuda": (1, 2, 4, 8), "cpu": (1, 2)}
STYLE = "<style>rect{fill:#0072b2}text{font:12px sans-serif}</style>"
SIZE = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {charts.WIDTH} {charts.HEIGHT}"'
BASE = charts.HEIGHT - charts.BOTTOM  # where the bars begin


def case(number: int) -> ways.Case:
    """The way of training on so many devices."""
    return ways.Way("ddp" if number > 1 else "single"), number


def title(number: int, device: str) -> str:
    """The name of a row."""
    return f"{'GPUs' if device == 'cuda' else 'processes'}: {number}"


def plot(seconds: Mapping[str, float]) -> str:
    """An SVG file with a bar for each row: the seconds of an epoch."""
    height = Axis(0, max(seconds.values()), BASE, charts.TOP)
    width = (charts.WIDTH - 2 * charts.RIGHT) / len(seconds)
    parts = [STYLE, charts.label(charts.WIDTH / 2, charts.HEIGHT - 4, "seconds per epoch", "middle")]
    for place, (name, value) in enumerate(seconds.items()):
        left, head = charts.RIGHT + width * place, height(value)
        size = f'width="{0.6 * width:.1f}" height="{BASE - head:.1f}"'
        parts.append(f'<rect x="{left + 0.2 * width:.1f}" y="{head:.1f}" {size}/>')
        parts.append(charts.label(left + width / 2, head - 5, measuring.formatted(value), "middle"))
        parts.append(charts.label(left + width / 2, BASE + 16, name, "middle"))
    text = ", ".join(f"{name} {measuring.formatted(value)}" for name, value in seconds.items())
    return charts.svg("devices", "Seconds per epoch", text, parts, SIZE) + "\n"


def main() -> None:
    options = measuring.parser(__doc__, "devices").parse_args()
    cases = {title(number, options.device): case(number) for number in NUMBERS[options.device]}
    report = ways.measure("devices", options, cases)
    seconds = {name: report.rows[name]["epoch_s"] for name in cases if name in report.rows}
    files.write_text(options.out / f"devices_{options.device}.svg", plot(seconds))
    one = seconds[title(1, options.device)]
    report.conclude(times_as_fast={name: one / value for name, value in seconds.items()})
