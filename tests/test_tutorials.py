"""docs/from-the-tutorials.md: every line of params.yaml in it is accepted on a machine that has what it needs."""

import re
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.checks import validity
from pipeline.checks.machine import Machine
from pipeline.config import params
from tests.conftest import PROJECT

PAGE = (PROJECT / "docs/from-the-tutorials.md").read_text()
GPUS = Machine(cuda_devices=8, apex="usable", compiler=True)
# What a row is added to: several processes, and no choice that excludes others.
BASE: dict[str, Any] = {"train.precision": "fp32", "train.parallel": "ddp", "run.processes": 8}
ROWS = re.findall(r"^\| (.+?) \| (`(?:data|paths|train|run)\..+?`) \|", PAGE, re.MULTILINE)


def test_every_row_is_read() -> None:
    """Two rows need no line."""
    assert len(ROWS) + 2 == PAGE.partition("|---|---|---|---|\n")[2].partition("\n\n")[0].count("\n| ") + 1


@pytest.mark.parametrize(("there", "here"), ROWS, ids=[there for there, _ in ROWS])
def test_the_lines_of_a_row_are_accepted(there: str, here: str) -> None:
    """On eight GPUs with Apex; a row of Apex needs the container, and no other one does."""
    lines = {key: YAML(typ="safe").load(value) for key, value in re.findall(r"`(\w+\.\w+): (.+?)`", here)}
    config = params.with_values(params.Params(), BASE | lines)
    assert validity.faults(config, GPUS) == []
    assert bool(validity.apex_choices(config.train)) is ("opt-level" in there or "apex" in there)
