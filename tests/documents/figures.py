"""The table of figures in docs/performance.md, made from the reports in benchmarks/results."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import measuring
from benchmarks.harness.measuring import RESULTS

SIDE = 224
Report = Mapping[str, Any]
Line = tuple[str, str, str]  # what is measured, our figure, and what it is compared with


def loader(report: Report) -> list[Line]:
    rows, times, once = report["rows"], report["figures"]["times_our_cpu"], report["figures"]["prepare_cpu_ms"]
    ours = rows[f"ours {SIDE}"]["cpu_ms"]
    others = ", ".join(
        f"{name.removesuffix(f' {SIDE}')} {cost:.2f} ms ({ratio:.1f} times; {cheaper_from(once, ours, cost)})"
        for name, ratio in times.items()
        if name.endswith(f" {SIDE}") and (cost := rows[name]["cpu_ms"])
    )
    what = f"CPU time to load one photo at {SIDE} pixels"
    return [(what, f"{ours:.2f} ms per epoch, and {once:.2f} ms once in `prepare`", others)]


def cheaper_from(once: float, ours: float, other: float) -> str:
    """The words for the epoch from which on ours costs less in all: `once` in `prepare`, and then `ours` per epoch.

    The decode of `split` is not counted.
    """
    return in_all(measuring.less_from(once, ours, other))


def in_all(epoch: int | None) -> str:
    """The words for the epoch from which on ours costs less in all; None: there is none."""
    return f"less in all from epoch {epoch}" if epoch else "less in no epoch"


def prepare(report: Report) -> list[Line]:
    rates = {name: row["images_per_s"] for name, row in report["rows"].items()}
    others = ", ".join(
        f"{name} {rates[name]:,.0f} (ours: {share:.2f} of it)"
        for name, share in report["figures"]["throughput"].items()
    )
    what = "`prepare` (decodes once, with Pillow), on all cores"
    return [(what, f"{rates['ours']:,.0f} photos/s", f"decode and resize alone: {others}")]


def ceiling(report: Report) -> list[Line]:
    rows = report["rows"]
    shares = ", ".join(
        f"{name}: {share:.3f} ({rows[name]['ours']:,.0f} images/s)"
        for name, share in report["figures"]["share"].items()
    )
    what = "training speed, relative to the same step on one fixed batch"
    lines = [(what, shares, "1: it never waits for images")]
    if costs := report["figures"]["cost_of_deterministic"]:
        percent = ", ".join(f"{name.split(' not')[0]}: {100 * value:.1f} %" for name, value in costs.items())
        lines.append(("what `deterministic: true` costs", percent, ""))
    return lines


def ceiling_rows(report: Report) -> list[Line]:
    return [
        (
            f"training step, {name}",
            f"{row['ours']:,.0f} images/s",
            f"{row['of_bound']:.2f} of the bound"
            + (f"; deterministic costs {100 * row['cost']:.1f} %" if "cost" in row else ""),
        )
        for name, row in report["rows"].items()
        if "of_bound" in row
    ]


def profile(report: Report) -> list[Line]:
    return [
        (
            f"a step by kind of kernel, {name}",
            f"{row['step_ms']:.1f} ms: "
            + ", ".join(
                f"{key.removesuffix('_ms')} {value:.1f}"
                for key, value in row.items()
                if key.endswith("_ms") and key != "step_ms" and value >= LEAST_SHARE * row["step_ms"]
            ),
            f"{row['launched']} kernels",
        )
        for name, row in report["rows"].items()
    ]


LEAST_SHARE = 0.01  # of a step, for a kind of kernel to be named


def variants(report: Report) -> list[Line]:
    rows, target = report["rows"], report["figures"]["target"]
    names = dict.fromkeys(" ".join(name.split()[2:]) for name in rows)
    lines = []
    for variant in names:
        of = [row for name, row in rows.items() if " ".join(name.split()[2:]) == variant]
        least, middle = min(row["accuracy"] for row in of), median(row["accuracy"] for row in of)
        seconds = median(row["from_first_step_s"] for row in of)
        reached = sum(row["reached"] for row in of)
        lines.append(
            (
                f"the preset `fast`, changed: {variant}",
                f"{seconds:.1f} s from the first step; {reached} of {len(of)} seeds reach {target}",
                f"accuracy {middle:.3f} (median), {least:.3f} (least)",
            )
        )
    return lines


def planning(report: Report) -> list[Line]:
    numbers = {name: tuple(map(int, re.findall(r"\d+", name))) for name in report["rows"]}  # images, steps
    each = [
        (*numbers[name], report["rows"][name]["plan_ms"]) for name in sorted(numbers, key=lambda name: numbers[name])
    ]
    several, one = (
        ", ".join(f"{images}: {ms:.2f} ms" for images, steps, ms in each if (steps == 1) is alone)
        for alone in (False, True)
    )
    return [("CPU time to plan a step, by images of the batch", several, f"each step by itself: {one}")]


def growth(report: Report) -> list[Line]:
    memory, linear = (report["figures"][name] for name in ("memory", "linear"))
    lines = [(f"peak memory of `{name}` at 10 times the data", f"{memory[name]:.2f} times", "") for name in STAGES]
    costs = ", ".join(f"`{name}` {value:.2f}" for name, value in linear.items())
    what = "cost per added photo: from 3 to 10 times the data, relative to from 1 to 3 times"
    return [*lines, (what, costs, "1: linear")]


STAGES = ("split", "prepare")


def pipeline(report: Report) -> list[Line]:
    figures, of = report["figures"], report["conditions"]
    total, first, again, status = (figures[f"{name}_s"] for name in ("total", "first_step", "again", "status"))
    return [
        (
            f"`dvc repro` from a local archive ({of['photos']}; epochs: {of['epochs']})",
            f"{total:.1f} s; first step after {first:.1f} s",
            f"again, with nothing changed: {again:.1f} s; `dvc status`: {status:.1f} s",
        )
    ]


def time_to_accuracy(report: Report) -> list[Line]:
    of, figures = report["conditions"], report["figures"]
    first, start = "from_first_step_s", "from_start_s"
    what = f"time to validation accuracy {figures['target']} ({of['photos']}; {of['model']}, {of['epochs']} epochs)"
    ours = f"{figures[first]:.1f} s from the first step, {figures[start]:.1f} s from the start"
    note = f"median; {figures['reached']} seeds reached it"
    lines = [(what, ours, note)]
    if f"{first}{GRAPHS}" in figures:
        ours = f"{figures[first + GRAPHS]:.1f} s from the first step, {figures[start + GRAPHS]:.1f} s from the start"
        same = f"the same weights as without: {figures['same_weights' + GRAPHS]} seeds"
        lines.append(("the same with CUDA graphs", ours, f"median; {figures['reached' + GRAPHS]} reached it; {same}"))
    return lines


GRAPHS = "_with_graphs"  # of the names of figures


def steps(report: Report) -> list[Line]:
    of, times = report["conditions"], report["figures"]["times_fp32"]
    rates = ", ".join(f"{name} {times[name]:.2f}" for name in times if name != "fp32 sgd")
    what = f"speed of a training step, relative to fp32 ({of['model']}, {of['batch']} images of {of['side']} pixels)"
    return [(what, rates, f"fp32: {report['rows']['fp32 sgd']['images_per_s']:,.0f} images/s")]


def ways(report: Report) -> list[Line]:
    seconds = ", ".join(f"{name} {row['epoch_s']:.1f}" for name, row in report["rows"].items())
    return [(f"seconds per epoch (devices: {report['conditions']['devices']})", seconds, "")]


def devices(report: Report) -> list[Line]:
    seconds = ", ".join(f"{name} {row['epoch_s']:.1f}" for name, row in report["rows"].items())
    return [("seconds per epoch, by number of devices", seconds, "")]


def peers(report: Report) -> list[Line]:
    of, figures = report["conditions"], report["figures"]
    times, epochs, once = (figures[name] for name in ("times_as_long", "less_from_epoch", "once_s"))
    seconds = {name: f"{name} {row['epoch_s']:.1f} s" for name, row in report["rows"].items() if "epoch_s" in row}
    ours = ", ".join(text for name, text in seconds.items() if name not in times)
    others = ", ".join(f"{seconds[name]} ({ratio:.2f} times; {in_all(epochs[name])})" for name, ratio in times.items())
    settings = f"{of['photos']}; {of['model']}, {of['crop']} pixels, batches of {of['batch_size']}"
    what = f"an epoch: loading, training and validation ({settings}; compute threads: {of['threads']})"
    return [(what, f"{ours}; and {once:.1f} s once in `split` and `prepare`", others)]


LINES: dict[str, Callable[[Report], list[Line]]] = {
    "loader": loader,
    "prepare": prepare,
    "ceiling": ceiling,
    "ceiling_rows": ceiling_rows,
    "profile": profile,
    "steps": steps,
    "planning": planning,
    "time_to_accuracy": time_to_accuracy,
    "time_to_accuracy_variants": variants,
    "pipeline": pipeline,
    "growth": growth,
    "ways": ways,
    "devices": devices,
    "peers": peers,
}


def machine(of: Mapping[str, Any]) -> str:
    """The machine, torch version and commit of a report, in one line."""
    commit, dirty, _ = of["commit"].partition("-dirty")
    gpus = f" {len(of['gpus'])} × {of['gpus'][0]}," if of["gpus"] else ""
    return f"{of['cpu']}, {of['cores']} cores,{gpus} torch {of['versions']['torch']}, commit {commit[:12]}{dirty}"


def table(results: Path) -> str:
    """The table of every report in a folder; machines and reports are named below it.

    Raises ValueError for a tiny report.
    """
    lines: list[str] = []
    machines: dict[str, list[str]] = {}  # a machine → the reports that are of it
    for device in ("cpu", "cuda"):
        for name, describe in LINES.items():
            if not (path := results / f"{name}_{device}.json").is_file():
                continue
            report = json.loads(path.read_text())
            if report["conditions"]["preset"] == "tiny":
                raise ValueError(f"{path}: of the tiny preset, which measures nothing")
            machines.setdefault(where := machine(report["conditions"]), []).append(path.name)
            mark = f" [{[*machines].index(where) + 1}]"
            lines += [f"| {what}{mark} | {ours} | {others} |" for what, ours, others in describe(report)]
    if not lines:
        return "Not measured yet: `make bench`."
    head = ["| what | here | for comparison, in the same run |", "|---|---|---|"]
    names = [
        f"[{number}] {where}: {', '.join(f'[{name}](../{RESULTS}/{name})' for name in reports)}"
        for number, (where, reports) in enumerate(machines.items(), 1)
    ]
    return "\n".join([*head, *lines, "", "<br>".join(names)])
