"""docs/from-the-tutorials.md: every line of params.yaml in it is accepted on a machine that has what it needs."""

import re
from typing import Any, NamedTuple

import pytest
from ruamel.yaml import YAML

from pipeline.config import params, validity
from pipeline.config.machine import Machine
from pipeline.config.params import APEX_LEVELS, Params
from tests.conftest import PROJECT, read_params

PAGE = (PROJECT / "docs/from-the-tutorials.md").read_text()
GPUS = Machine(cuda_devices=8, apex="usable", compiler=True)
# What a row of the table of flags is added to: several processes, and no choice that excludes others.
BASE: dict[str, Any] = {"train": {"precision": "fp32", "parallel": "ddp"}, "run": {"processes": 8}}


class Script(NamedTuple):
    """One section of the page: its heading, the command of the tutorial, and the lines with those of its recipe."""

    title: str
    command: str
    lines: dict[str, Any]


def merged(*tables: dict[str, Any]) -> dict[str, Any]:
    """Tables of sections as one; a later table replaces single keys of an earlier one."""
    result: dict[str, Any] = {}
    for table in tables:
        for section, keys in table.items():
            result[section] = result.get(section, {}) | keys
    return result


def blocks(language: str, text: str) -> list[str]:
    """The content of the code blocks of a language."""
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)


def scripts() -> list[Script]:
    """Every script of the page, in its order."""
    found = []
    for author in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:-1]:
        recipe, *sections = re.split(r"^### ", author, flags=re.MULTILINE)
        (shared,) = blocks("yaml", recipe)
        for section in sections:
            (own,), command = blocks("yaml", section), blocks("bash", section)[0]
            lines = merged(*(YAML(typ="safe").load(text) for text in (shared, own)))
            found.append(Script(f"{author.splitlines()[0]}: {section.splitlines()[0]}", command, lines))
    return found


def rows() -> list[tuple[str, dict[str, Any]]]:
    """Every row of the table of flags that names lines: its left side, and the lines as a table."""
    found = []
    for there, here in re.findall(r"^\| (.+) \| (`(?:data|paths|train|run)\..+`) \|$", PAGE, re.MULTILINE):
        lines: dict[str, Any] = {}
        for section, key, value in re.findall(r"`(\w+)\.(\w+): (.+?)`", here):
            lines.setdefault(section, {})[key] = YAML(typ="safe").load(value)
        found.append((there, lines))
    return found


def accepted(lines: dict[str, Any]) -> Params:
    """These lines in the project's params, as a machine with eight GPUs and Apex takes them."""
    raw = read_params()
    for section, keys in lines.items():
        assert keys.keys() <= raw[section].keys(), f"no such setting: {section}: {keys.keys() - raw[section].keys()}"
    config = params.parse(merged(raw, lines))
    assert validity.faults(config, GPUS) == []
    return config


SCRIPTS, ROWS = scripts(), rows()


def test_the_page_has_every_script_and_flag() -> None:
    """Six collections with 18 scripts; three rows of the table of flags need no line."""
    assert len({script.title.partition(":")[0] for script in SCRIPTS}) == 6
    assert len(SCRIPTS) == 18
    assert PAGE.partition("| there | here |")[2].count("\n| ") - len(ROWS) == 3


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.title for script in SCRIPTS])
def test_the_lines_of_a_script_are_accepted(script: Script) -> None:
    """On eight GPUs with Apex; a script of Apex needs the container, and each other one does not."""
    config = accepted(script.lines)
    apex = "amp" in script.command or "apex" in script.command
    assert bool(validity.apex_choices(config.train)) is (apex and "--amp" not in script.command)
    gpus = re.search(r"(?:nproc_per_node=|--world-size )(\d+)", script.command)
    if gpus and "--multiprocessing-distributed" not in script.command:
        assert config.run.processes == int(gpus[1]) * config.run.nodes


@pytest.mark.parametrize(("there", "lines"), ROWS, ids=[there for there, _ in ROWS])
def test_the_lines_of_a_flag_are_accepted(there: str, lines: dict[str, Any]) -> None:
    """In a training on eight GPUs with DDP."""
    accepted(merged(BASE, lines))


@pytest.mark.parametrize("level", APEX_LEVELS)
def test_every_level_of_apex_is_a_row(level: str) -> None:
    """`--opt-level` and `train.precision` have the same names."""
    assert (f"`--opt-level {level}`", {"train": {"precision": level}}) in ROWS
