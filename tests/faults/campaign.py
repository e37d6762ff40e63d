"""Shared by the campaigns that interrupt real runs: the options, a line for each outcome, and the JSON file of them."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pipeline.base import files

Row = dict[str, Any]


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m tests.faults.NAME`, with the option --out."""
    result = argparse.ArgumentParser(prog=f"python -m tests.faults.{name}", description=(doc or "").split("\n")[0])
    result.add_argument("--out", type=Path, help="a JSON file for the figures, written anew after every outcome")
    return result


def run(rows: Iterable[Row], out: Path | None, report: Callable[[list[Row]], Row]) -> list[Row]:
    """Print each outcome when it is there, and the summary at the end. Returns all outcomes.

    `report`: the content of the file `out`, with the figures of all outcomes as "summary".
    """
    done: list[Row] = []
    for row in rows:
        done.append(row)
        print(f"{len(done)}.", ", ".join(f"{name}: {as_text(value)}" for name, value in row.items()), flush=True)
        if out:
            files.write_json(out, report(done))
    for name, value in report(done)["summary"].items():
        print(f"{name:<32} {value}")
    return done


def as_text(value: Any) -> str:
    """A figure, or the values of a table or a list, in one line."""
    if isinstance(value, dict | list):
        return " ".join(map(str, value.values() if isinstance(value, dict) else value)) or "-"
    return str(value)
