"""The README's table of figures, made from the reports in benchmarks/results.

python -m benchmarks readme      writes it anew
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.measuring import RESULTS

README = Path("README.md")
BLOCK = re.compile(r"(?<=<!-- figures: python -m benchmarks readme -->\n).*?(?=<!-- /figures -->)", re.DOTALL)
SIDE = 224
Report = Mapping[str, Any]
Line = tuple[str, str, str]  # what is measured, our figure, and what it is compared with


def loader(report: Report) -> list[Line]:
    rows, times = report["rows"], report["figures"]["times_our_cpu"]
    others = [
        f"{name.removesuffix(f' {SIDE}')} {rows[name]['cpu_ms']:.2f} ms ({ratio:.1f} times)"
        for name, ratio in times.items()
        if name.endswith(f" {SIDE}") and not name.startswith("ours")
    ]
    return [
        (f"CPU time to load one photo at {SIDE} pixels", f"{rows[f'ours {SIDE}']['cpu_ms']:.2f} ms", ", ".join(others))
    ]


def prepare(report: Report) -> list[Line]:
    rates = {name: f"{row['images_per_s']:,.0f}" for name, row in report["rows"].items()}
    others = ", ".join(
        f"{name} {rates[name]} (ours: {share:.2f} of it)" for name, share in report["figures"]["throughput"].items()
    )
    what = "`prepare` (decodes once, with Pillow), on all cores"
    return [(what, f"{rates['ours']} photos/s", f"decode and resize alone: {others}")]


def ceiling(report: Report) -> list[Line]:
    shares = ", ".join(f"{name}: {share:.3f}" for name, share in report["figures"]["share"].items())
    lines = [("training speed, relative to the same step on one fixed batch", shares, "1: it never waits for images")]
    if costs := report["figures"]["cost_of_deterministic"]:
        percent = ", ".join(f"{name.split(' not')[0]}: {100 * value:.1f} %" for name, value in costs.items())
        lines.append(("what `deterministic: true` costs", percent, ""))
    return lines


def growth(report: Report) -> list[Line]:
    memory, linear = (report["figures"][name] for name in ("memory", "linear"))
    lines = [(f"peak memory of `{name}` at 10 times the data", f"{memory[name]:.2f} times", "") for name in STAGES]
    costs = ", ".join(f"`{name}` {value:.2f}" for name, value in linear.items())
    return [
        *lines,
        ("cost per added photo: from 3 to 10 times the data, relative to from 1 to 3 times", costs, "1: linear"),
    ]


STAGES = ("split", "prepare")


def pipeline(report: Report) -> list[Line]:
    figures, conditions = report["figures"], report["conditions"]
    return [
        (
            f"`dvc repro` from a local archive ({conditions['photos']}; epochs: {conditions['epochs']})",
            f"{figures['total_s']:.1f} s; first step after {figures['first_step_s']:.1f} s",
            f"again, with nothing changed: {figures['again_s']:.1f} s; `dvc status`: {figures['status_s']:.1f} s",
        )
    ]


def time_to_accuracy(report: Report) -> list[Line]:
    conditions, figures = report["conditions"], report["figures"]
    model = f"{conditions['photos']}; {conditions['model']}, {conditions['epochs']} epochs"
    return [
        (
            f"time to validation accuracy {figures['target']} ({model})",
            f"{figures['from_first_step_s']:.1f} s from the first step, {figures['from_start_s']:.1f} s from the start",
            f"median; {figures['reached']} seeds reached it",
        )
    ]


def peers(report: Report) -> list[Line]:
    rates = {name: f"{row['images_per_s']:,.0f}" for name, row in report["rows"].items()}
    ours, others = (
        ", ".join(f"{name} {rate}" for name, rate in rates.items() if name.startswith("ours") is is_ours)
        for is_ours in (True, False)
    )
    return [("training with loading, images/s", ours, others)]


def ways(report: Report) -> list[Line]:
    seconds = ", ".join(f"{name} {row['epoch_s']:.1f}" for name, row in report["rows"].items())
    return [(f"seconds per epoch, {report['conditions']['devices']} devices", seconds, "")]


LINES: dict[str, Callable[[Report], list[Line]]] = {
    "loader": loader,
    "prepare": prepare,
    "ceiling": ceiling,
    "peers": peers,
    "time_to_accuracy": time_to_accuracy,
    "pipeline": pipeline,
    "growth": growth,
    "ways": ways,
}


def machine(of: Mapping[str, Any]) -> str:
    """The machine, torch version and commit of a report, in one line."""
    gpus = f", {len(of['gpus'])} × {of['gpus'][0]}" if of["gpus"] else ""
    commit, dirty, _ = of["commit"].partition("-dirty")
    return f"{of['cpu']}, {of['cores']} cores{gpus}, torch {of['versions']['torch']}, commit {commit[:12]}{dirty}"


def table(results: Path) -> str:
    """The table of every report in a folder; machines are named below it. Raises ValueError for a tiny report."""
    lines, machines = [], []
    for device in ("cpu", "cuda"):
        for name, describe in LINES.items():
            if not (path := results / f"{name}_{device}.json").is_file():
                continue
            report = json.loads(path.read_text())
            if report["conditions"]["preset"] == "tiny":
                raise ValueError(f"{path}: of the tiny preset, which measures nothing")
            if (where := machine(report["conditions"])) not in machines:
                machines.append(where)
            mark = f" [{machines.index(where) + 1}]"
            lines += [f"| {what}{mark} | {ours} | {others} |" for what, ours, others in describe(report)]
    if not lines:
        return "Not measured yet: `make bench`."
    head = ["| what | here | for comparison, in the same run |", "|---|---|---|"]
    names = [f"[{number}] {where}" for number, where in enumerate(machines, 1)]
    return "\n".join([*head, *lines, "", "<br>".join(names)])


def main() -> int:
    README.write_text(BLOCK.sub(lambda _: table(RESULTS) + "\n", README.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
