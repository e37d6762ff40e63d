"""docs/from-the-tutorials.md: every line of params.yaml in it is accepted on a machine that has what it needs."""

import re
from typing import Any, NamedTuple

import pytest
from ruamel.yaml import YAML

from pipeline.checks import validity
from pipeline.checks.machine import Machine
from pipeline.config import params
from pipeline.config.params import Params
from tests.conftest import PROJECT, read_params

PAGE = (PROJECT / "docs/from-the-tutorials.md").read_text()
GPUS = Machine(cuda_devices=8, apex="usable", compiler=True)
# What a row is added to: several processes, and no choice that excludes others.
BASE: dict[str, Any] = {"train": {"precision": "fp32", "parallel": "ddp"}, "run": {"processes": 8}}


class Row(NamedTuple):
    """A row of the page: what is there, and the lines here as a table."""

    there: str
    lines: dict[str, Any]


def merged(*tables: dict[str, Any]) -> dict[str, Any]:
    """Tables of sections as one; a later table replaces single keys of an earlier one."""
    result: dict[str, Any] = {}
    for table in tables:
        for section, keys in table.items():
            result[section] = result.get(section, {}) | keys
    return result


def rows() -> list[Row]:
    """Every row that names lines."""
    table_rows = []
    for there, here in re.findall(r"^\| (.+?) \| (`(?:data|paths|train|run)\..+?`) \|", PAGE, re.MULTILINE):
        lines: dict[str, Any] = {}
        for section, key, value in re.findall(r"`(\w+)\.(\w+): (.+?)`", here):
            lines.setdefault(section, {})[key] = YAML(typ="safe").load(value)
        table_rows.append(Row(there, lines))
    return table_rows


def parse(lines: dict[str, Any]) -> Params:
    """These lines in the project's params, as a machine with eight GPUs and Apex takes them."""
    raw = read_params()
    for section, keys in lines.items():
        assert keys.keys() <= raw[section].keys(), f"no such setting: {section}: {keys.keys() - raw[section].keys()}"
    config = params.parse(merged(raw, lines))
    assert validity.faults(config, GPUS) == []
    return config


ROWS = rows()


def test_every_row_is_read() -> None:
    """Two rows need no line."""
    assert len(ROWS) + 2 == PAGE.partition("|---|---|---|---|\n")[2].partition("\n\n")[0].count("\n| ") + 1


@pytest.mark.parametrize("row", ROWS, ids=[row.there for row in ROWS])
def test_the_lines_of_a_row_are_accepted(row: Row) -> None:
    """On eight GPUs with Apex; a row of Apex needs the container, and no other one does."""
    config = parse(merged(BASE, row.lines))
    apex = "opt-level" in row.there or "apex" in row.there
    assert bool(validity.apex_choices(config.train)) is apex
