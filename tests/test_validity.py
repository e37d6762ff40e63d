"""Which pairs of choices run: every pair is tried. tests/test_refusals.py has what is refused, and in which form."""

import itertools

from pipeline.config import rules, validity
from pipeline.config.machine import Machine
from tests.helpers.choices import CHOICES, CPU_ONLY, TWO_GPUS, with_lines

USUAL = {key: options[0] for key, options in CHOICES.items()} | {
    "train.device": "cuda", "train.shards": 4, "run.rendezvous": "node0:29400",
}  # fmt: skip


def test_every_pair_of_choices_runs_or_is_a_row() -> None:
    """Each choice runs with the usual ones. Two are refused only by rows with the keys of both, or for their numbers:
    one process on two nodes. Every row with two of these keys refuses a pair.
    """
    refusing = set()
    for (key, options), (other, others) in itertools.combinations(CHOICES.items(), 2):
        for value, second in itertools.product(options, others):
            lines = USUAL | {key: value, other: second}
            if lines["train.parallel"] in rules.ONE_PROCESS and "run.processes" not in (key, other):
                lines["run.processes"] = 1
            config = with_lines(**lines)
            rows = [row for row in rules.PAIRS if row.applies(config)]
            refusing |= set(map(id, rows))
            assert all({key, other} <= row.conditions.keys() for row in rows), lines
            found = [fault.key for fault in validity.faults(config, TWO_GPUS) if fault.kind != "pair"]
            assert found == ["run.processes"] * (config.run.processes < config.run.nodes), lines
            assert lines != USUAL or not rows
    assert {id(row) for row in rules.PAIRS if row.conditions.keys() <= CHOICES.keys()} == refusing


def test_a_login_node_of_slurm_needs_no_gpu() -> None:
    """Only processes that srun starts need GPUs on their node."""
    lines = {"train__device": "cuda", "run__launcher": "slurm", "train__parallel": "ddp", "run__processes": 4}
    assert validity.faults(with_lines(**lines), CPU_ONLY) == []
    assert validity.faults(with_lines(**lines), Machine(1, "missing", True)) == []
