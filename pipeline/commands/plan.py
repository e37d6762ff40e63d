"""Say what the next run will do, and why: `perennial plan`.

    perennial plan [--json]

A line for each stage: whether it is unchanged, comes from DVC's cache, runs, or may run because a stage before it runs
and may write something else; and how long its last run took. Below it: which param, file or output changed. It looks at
the files as they are now, also at uncommitted edits, and changes nothing. The rules are in planning/forecast.py.
"""

import json
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.base.text import in_words, visible
from pipeline.checks import machine, validity
from pipeline.config import document, params
from pipeline.planning import forecast
from pipeline.planning.forecast import Forecast, Reason
from pipeline.running.terminal import columns
from pipeline.sources import originals

SAID = {"unchanged": "unchanged", "cache": "from DVC's cache", "runs": "runs", "maybe": "maybe"}
STAGES_BEFORE = {forecast.RESTORED: "input from an earlier run of", forecast.OPEN: "if the output changes of"}
MOST_FILES = 3
MINUTE, HOUR = 60, 3600


def duration(seconds: float | None) -> str:
    """A measured time in words; seconds only below an hour."""
    if seconds is None:
        return "not known"
    whole = max(1, round(seconds))
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s"
    return f"{whole // HOUR:,} h {whole % HOUR // MINUTE} min"


def describe(reason: Reason) -> str:
    """A reason in a line."""
    named = [path if change == "changed" else f"{path} ({change})" for path, change in reason.files.items()]
    match reason.kind:
        case "param":
            old, new = (_value(reason.values[word]) if word in reason.values else "none" for word in ("old", "new"))
            return f"{reason.name}: {old} → {new}"
        case "command":
            return "its command in dvc.yaml changed"
        case "new":
            return reason.change + " yet"
    where = f"{reason.name}: " if len(named) > MOST_FILES or not named else ""
    return visible(where + (in_words(named, MOST_FILES) or reason.change))


def below(each: Forecast) -> list[str]:
    """The reasons of a stage. What stages before it may write is only said if it decides."""
    own = [describe(reason) for reason in each.reasons if reason.kind != "stage"]
    said = [forecast.RESTORED, *([forecast.OPEN] if each.state == "maybe" else [])]
    makers = {change: [reason.name for reason in each.reasons if reason.change == change] for change in said}
    return own + [f"{STAGES_BEFORE[change]}: {', '.join(names)}" for change, names in makers.items() if names]


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value else document.short_text(value)


def lines(forecasts: list[Forecast]) -> list[str]:
    """The table."""
    rows = [("stage", "next run", "last time")]
    rows += [(each.stage, SAID[each.state], duration(each.seconds)) for each in forecasts]
    parts = zip(columns(rows), [[], *map(below, forecasts)], strict=True)
    return [line for row, why in parts for line in (row, *(f"    {one}" for one in why))]


def total(forecasts: list[Forecast]) -> str:
    """How many stages run or may run, and how long they took last time."""
    ahead = [each for each in forecasts if each.state in ("runs", "maybe")]
    if not ahead:
        return "No stage runs."
    runs = sum(each.state == "runs" for each in ahead)
    known = [each.seconds for each in ahead if each.seconds is not None]
    unknown = [each.stage for each in ahead if each.seconds is None]
    without = f" without {in_words(unknown)}, which is not known" if known and unknown else ""
    took = f"{duration(sum(known) if known else None)}{without}"
    return f"Stages that run: {runs}; that may run: {len(ahead) - runs}. Their last time, in all: {took}."


def main(arguments: Namespace) -> int:
    """Print the forecast; 0. Raises UserError for unreadable params, dvc.yaml or dvc.lock."""
    config = params.load()
    if (inbox := Path(config.paths.inbox)).is_dir():
        originals.list_entries(inbox)  # DVC would wait for ever at a pipe
    forecasts = forecast.forecast()
    refused = [str(fault) for fault in validity.faults(config, machine.read())]
    if arguments.json:
        stages = [asdict(each) for each in forecasts]
        print(json.dumps({"stages": stages, "refused": refused}, indent=2, ensure_ascii=False, default=str))
        return 0
    print(*lines(forecasts), "", total(forecasts), sep="\n")
    if refused:
        print("\nA stage that has to run would be refused here:", *refused, sep="\n")
    return 0
