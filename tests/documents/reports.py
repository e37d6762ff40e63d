"""Tables of docs/ that are made of the reports in benchmarks/results: a line for each row that was measured."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.harness import measuring
from benchmarks.harness.measuring import RESULTS
from tests.conftest import PROJECT
from tests.documents.markdown import table

Report = Mapping[str, Any]


def by_row(first: str, **columns: str) -> Callable[[Report], str]:
    """A table of all rows by their names: a column for each key, with its title and its format, after a colon."""
    titles = {key: of.rpartition(":")[0] for key, of in columns.items()}
    forms = {key: of.rpartition(":")[2] for key, of in columns.items()}

    def make(report: Report) -> str:
        lines = [
            (name, *(f"{row[key]:{form}}" if key in row else "–" for key, form in forms.items()))
            for name, row in report["rows"].items()
        ]
        return table(" | ".join([first, *titles.values()]), lines)

    return make


def loader(report: Report, side: int = 224) -> str:
    """The CPU time of each program for images of one size, and from which epoch on ours costs less in all."""
    rows, once = report["rows"], report["figures"]["prepare_cpu_ms"]
    ours = rows[f"ours {side}"]["cpu_ms"]

    def line(name: str, cost: float) -> tuple[str, ...]:
        epoch = "–" if name.startswith("ours") else str(measuring.less_from(once, ours, cost) or "none")
        return name, f"{cost:.2f} ms", f"{cost / ours:.1f}", epoch

    costs = {name.removesuffix(f" {side}"): row["cpu_ms"] for name, row in rows.items() if name.endswith(f" {side}")}
    return table(
        "program | CPU time per photo and epoch | relative to ours | ours costs less in all from epoch",
        [line(name, cost) for name, cost in sorted(costs.items(), key=lambda item: item[1])],
    )


def peers(report: Report) -> str:
    """The seconds of an epoch by program, and from which epoch on ours takes less time in all."""
    times, epochs = (report["figures"][name] for name in ("times_as_long", "less_from_epoch"))
    lines = [
        (name, f"{row['epoch_s']:.1f} s", *((f"{times[name]:.2f}", epochs[name] or "none") if name in times else "––"))
        for name, row in report["rows"].items()
        if "epoch_s" in row
    ]
    return table("program | an epoch | relative to ours | ours is shorter in all from epoch", lines)


TABLES: Mapping[str, Callable[[Report], str]] = {  # report without its device → the table of it
    "ceiling_rows": by_row(
        "model, images", ours="images/s:,.0f", share="share of the fixed batch:.3f", of_bound="share of the bound:.2f"
    ),
    "loader": loader,
    "peers": peers,
    "steps": by_row(
        "precision, optimizer", images_per_s="images/s:,.0f", times_fp32="relative to fp32:.2f",
        gpu_memory_mb="most memory, MB:,.0f",
    ),
    "ways": by_row("way", epoch_s="s per epoch:.1f"),
}  # fmt: skip


def with_shares(report: Report) -> Report:
    """The rows with those figures that have one number for each row."""
    figures = {key: value for key, value in report["figures"].items() if isinstance(value, dict)}
    rows = {
        name: {**{key: of[name] for key, of in figures.items() if name in of}, **row}
        for name, row in report["rows"].items()
    }
    return {**report, "rows": rows}


def made_of(name: str) -> str:
    """The table of a report in benchmarks/results, such as `loader_cpu`, and its machine.

    Raises ValueError for a tiny report.
    """
    report = json.loads((PROJECT / RESULTS / f"{name}.json").read_text())
    of = report["conditions"]
    if of["preset"] == "tiny":
        raise ValueError(f"{name}: of the tiny preset, which measures nothing")
    machine = f"{of['gpus'][0] if of['gpus'] else of['cpu']}, {of['cores']} cores, torch {of['versions']['torch']}"
    source = f"{machine}, commit {of['commit'][:7]}: [{name}.json](../{RESULTS}/{name}.json)"
    return f"{TABLES[name.rpartition('_')[0]](with_shares(report))}\n\n{source}"
