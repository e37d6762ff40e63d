"""The README's table of figures, made from the reports in benchmarks/results."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.documents.phrases import Say, english

SIDE = 224
Report = Mapping[str, Any]
Line = tuple[str, str, str]  # what is measured, our figure, and what it is compared with


def loader(report: Report, say: Say) -> list[Line]:
    rows, times = report["rows"], report["figures"]["times_our_cpu"]
    others = say(", ").join(
        say(
            "{name} {ms:.2f} ms ({ratio:.1f} times)",
            name=name.removesuffix(f" {SIDE}").replace("tutorial", say("tutorial")),
            ms=rows[name]["cpu_ms"],
            ratio=ratio,
        )
        for name, ratio in times.items()
        if name.endswith(f" {SIDE}") and not name.startswith("ours")
    )
    what = say("CPU time to load one photo at {side} pixels", side=SIDE)
    return [(what, f"{rows[f'ours {SIDE}']['cpu_ms']:.2f} ms", others)]


def prepare(report: Report, say: Say) -> list[Line]:
    rates = {name: row["images_per_s"] for name, row in report["rows"].items()}
    others = say(", ").join(
        say("{name} {rate:,.0f} (ours: {share:.2f} of it)", name=name, rate=rates[name], share=share)
        for name, share in report["figures"]["throughput"].items()
    )
    return [
        (
            say("`prepare` (decodes once, with Pillow), on all cores"),
            say("{rate:,.0f} photos/s", rate=rates["ours"]),
            say("decode and resize alone: {others}", others=others),
        )
    ]


def ceiling(report: Report, say: Say) -> list[Line]:
    shares = say(", ").join(
        say("{name}: {share:.3f}", name=name, share=share) for name, share in report["figures"]["share"].items()
    )
    what = say("training speed, relative to the same step on one fixed batch")
    lines = [(what, shares, say("1: it never waits for images"))]
    if costs := report["figures"]["cost_of_deterministic"]:
        percent = say(", ").join(
            say("{name}: {percent:.1f} %", name=name.split(" not")[0], percent=100 * value)
            for name, value in costs.items()
        )
        lines.append((say("what `deterministic: true` costs"), percent, ""))
    return lines


def growth(report: Report, say: Say) -> list[Line]:
    memory, linear = (report["figures"][name] for name in ("memory", "linear"))
    lines = [
        (
            say("peak memory of `{name}` at 10 times the data", name=name),
            say("{times:.2f} times", times=memory[name]),
            "",
        )
        for name in STAGES
    ]
    costs = say(", ").join(f"`{name}` {value:.2f}" for name, value in linear.items())
    what = say("cost per added photo: from 3 to 10 times the data, relative to from 1 to 3 times")
    return [*lines, (what, costs, say("1: linear"))]


STAGES = ("split", "prepare")


def pipeline(report: Report, say: Say) -> list[Line]:
    figures, of = report["figures"], report["conditions"]
    total, first, again, status = (figures[f"{name}_s"] for name in ("total", "first_step", "again", "status"))
    return [
        (
            say(
                "`dvc repro` from a local archive ({photos}; epochs: {epochs})",
                photos=of["photos"],
                epochs=of["epochs"],
            ),
            say("{total:.1f} s; first step after {first:.1f} s", total=total, first=first),
            say("again, with nothing changed: {again:.1f} s; `dvc status`: {status:.1f} s", again=again, status=status),
        )
    ]


def time_to_accuracy(report: Report, say: Say) -> list[Line]:
    of, figures = report["conditions"], report["figures"]
    reached, seeds = figures["reached"].split(" of ")
    return [
        (
            say(
                "time to validation accuracy {target} ({photos}; {model}, {epochs} epochs)",
                target=figures["target"], photos=of["photos"], model=of["model"], epochs=of["epochs"],
            ),
            say(
                "{step:.1f} s from the first step, {start:.1f} s from the start",
                step=figures["from_first_step_s"], start=figures["from_start_s"],
            ),
            say("median; {reached} of {seeds} seeds reached it", reached=reached, seeds=seeds),
        )
    ]  # fmt: skip


def ways(report: Report, say: Say) -> list[Line]:
    times = {tuple(name.split(" by ")): row["epoch_s"] for name, row in report["rows"].items()}
    seconds = say(", ").join(
        say("{parallel} by {launcher} {seconds:.1f}", parallel=way[0], launcher=way[1], seconds=time)
        if len(way) > 1
        else f"{way[0]} {time:.1f}"
        for way, time in times.items()
    )
    return [(say("seconds per epoch, {devices} devices", devices=report["conditions"]["devices"]), seconds, "")]


LINES: dict[str, Callable[[Report, Say], list[Line]]] = {
    "loader": loader,
    "prepare": prepare,
    "ceiling": ceiling,
    "time_to_accuracy": time_to_accuracy,
    "pipeline": pipeline,
    "growth": growth,
    "ways": ways,
}


def machine(of: Mapping[str, Any], say: Say = english) -> str:
    """The machine, torch version and commit of a report, in one line."""
    commit, dirty, _ = of["commit"].partition("-dirty")
    known = {
        "cpu": of["cpu"],
        "cores": of["cores"],
        "torch": of["versions"]["torch"],
        "commit": f"{commit[:12]}{dirty}",
    }
    if not of["gpus"]:
        return say("{cpu}, {cores} cores, torch {torch}, commit {commit}", **known)
    phrase = "{cpu}, {cores} cores, {count} × {gpu}, torch {torch}, commit {commit}"
    return say(phrase, count=len(of["gpus"]), gpu=of["gpus"][0], **known)


def table(results: Path, say: Say = english) -> str:
    """The table of every report in a folder; machines are named below it. Raises ValueError for a tiny report."""
    lines, machines = [], []
    for device in ("cpu", "cuda"):
        for name, describe in LINES.items():
            if not (path := results / f"{name}_{device}.json").is_file():
                continue
            report = json.loads(path.read_text())
            if report["conditions"]["preset"] == "tiny":
                raise ValueError(f"{path}: of the tiny preset, which measures nothing")
            if (where := machine(report["conditions"], say)) not in machines:
                machines.append(where)
            mark = f" [{machines.index(where) + 1}]"
            lines += [f"| {what}{mark} | {ours} | {others} |" for what, ours, others in describe(report, say)]
    if not lines:
        return say("Not measured yet: `make bench`.")
    titles = (say("what"), say("here"), say("for comparison, in the same run"))
    head = [f"| {' | '.join(titles)} |", "|---|---|---|"]
    names = [f"[{number}] {where}" for number, where in enumerate(machines, 1)]
    return "\n".join([*head, *lines, "", "<br>".join(names)])
