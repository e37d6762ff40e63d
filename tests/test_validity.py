"""Which pairs of choices run: every pair is tried. tests/test_refusals.py has what is refused, and in which form."""

import itertools
from typing import Any

import pytest

from pipeline.checks import rules, validity
from pipeline.checks.machine import Machine
from tests.helpers.choices import CHOICES, CPU_ONLY, TWO_GPUS, with_lines

USUAL = {key: options[0] for key, options in CHOICES.items()} | {
    "train.device": "cuda", "train.shards": 4, "run.rendezvous": "node0:29400",
}  # fmt: skip


def test_every_pair_of_choices_runs_or_is_a_row() -> None:
    """Each choice runs with the usual ones. Two are refused only by rows with the keys of both, or for their numbers:
    one process on two nodes. Every row with two of these keys refuses a pair.
    """
    ids = set()
    for (key, options), (other, others) in itertools.combinations(CHOICES.items(), 2):
        for value, second in itertools.product(options, others):
            lines = USUAL | {key: value, other: second}
            if lines["train.parallel"] in rules.ONE_PROCESS and "run.processes" not in (key, other):
                lines["run.processes"] = 1
            config = with_lines(**lines)
            rows = [row for row in rules.PAIRS if row.applies(config)]
            ids |= set(map(id, rows))
            hint = "CHOICES in tests/helpers/choices.py: the first value of each key must run with every choice"
            assert all({key, other} <= row.conditions.keys() for row in rows), (hint, lines)
            keys = [fault.key for fault in validity.faults(config, TWO_GPUS) if fault.kind != "pair"]
            assert keys == ["run.processes"] * (config.run.processes < config.run.nodes), lines
            assert lines != USUAL or not rows
    assert {id(row) for row in rules.PAIRS if row.conditions.keys() <= CHOICES.keys()} == ids


EIGHT_GPUS = Machine(cuda_devices=8, apex="missing", compiler=True)


@pytest.mark.parametrize(
    ("lines", "here", "unused", "remedy"),
    [
        ({}, EIGHT_GPUS, 7, "run.processes: 8;"), ({}, CPU_ONLY, 0, ""),
        ({"train__parallel": "single"}, EIGHT_GPUS, 7, "run.processes: 8, train.parallel: ddp;"),
        ({"run__processes": 4, "run__nodes": 2}, EIGHT_GPUS, 6, "run.processes: 16;"),
        *((lines, EIGHT_GPUS, 0, "") for lines in (
            {"run__processes": 8}, {"train__parallel": "dp"}, {"train__device": "cpu"},
        )),
    ],
)  # fmt: skip
def test_visible_gpus_without_a_process_are_named(
    lines: dict[str, Any], here: Machine, unused: int, remedy: str
) -> None:
    """With the lines of params.yaml that use them. One process of DataParallel uses all."""
    note = validity.unused_gpus(with_lines(**{"train__device": "cuda", "train__parallel": "ddp", **lines}), here)
    assert remedy in note
    assert note.startswith(f"{unused} of ") if unused else note == ""
