"""The tables of docs/ways.md: what can be combined, and every row of the rules."""

from pipeline.checks import rules
from pipeline.checks.machine import Machine
from tests.helpers.choices import CPU_ONLY, PARALLEL, PRECISION, TWO_GPUS
from tests.test_ways import Cell, faults

PLACES = {
    "`train.precision` on the CPU": ("cpu", CPU_ONLY),
    "on GPUs": ("cuda", Machine(2, "missing", True)),
    "on GPUs with Apex": ("cuda", TWO_GPUS),
}


def table() -> str:
    """The precisions that are not refused with each way of parallelism, in each of the places."""
    lines = [f"| `train.parallel` | {' | '.join(PLACES)} |", "|---|---|---|---|"]
    for parallel in PARALLEL:
        cells = [Cell("torchrun", parallel, precision, "none", "contiguous", "cpu") for precision in PRECISION]
        row = [
            " ".join(cell.precision for cell in cells if not faults(cell._replace(device=device), machine)) or "–"
            for device, machine in PLACES.values()
        ]
        lines.append(f"| `{parallel}` | {' | '.join(row)} |")
    return "\n".join(lines)


def pairs() -> str:
    """Every row of the rules."""
    lines = ["| choice | not with | why | allowed instead |", "|---|---|---|---|"]
    for row in rules.PAIRS:
        first, *others = (f"`{key}`: {rules.words(values)}" for key, values in row.conditions.items())
        lines.append(f"| {first} | {'; '.join(others)} | {row.reason} | {row.allowed} |")
    return "\n".join(lines)
