"""Which pairs of choices run: every pair is tried. tests/test_refusals.py has what is refused, and in which form."""

import itertools
from argparse import Namespace
from typing import Any

import pytest

from pipeline.commands import doctor
from pipeline.config import machine, rules, validity
from pipeline.config.machine import Machine
from pipeline.models import description
from pipeline.stages import frame, launch
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


def test_a_login_node_of_slurm_needs_no_gpu() -> None:
    """Only processes that srun starts need GPUs on their node."""
    lines = {"train__device": "cuda", "run__launcher": "slurm", "train__parallel": "ddp", "run__processes": 4}
    assert validity.faults(with_lines(**lines), CPU_ONLY) == []
    assert validity.faults(with_lines(**lines), Machine(1, "missing", True)) == []


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


@pytest.mark.parametrize(("stage", "names"), [("train", True), ("evaluate", False)])
def test_a_training_begins_with_the_gpus_that_it_does_not_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stage: str, names: bool
) -> None:
    """The doctor says the same, beside the visible GPUs."""
    config = with_lines(train__device="cuda", train__parallel="ddp")
    monkeypatch.setattr(machine, "read", lambda: EIGHT_GPUS)
    monkeypatch.setattr(frame, "run_stage", lambda _, work: work(config) or 0)
    monkeypatch.setattr(launch, "set_variables", lambda *_: None)
    monkeypatch.setattr(launch, "with_restarts", lambda *_: None)
    monkeypatch.setattr(description, "usable_arithmetic", lambda _: "native")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert launch.main(Namespace(command=stage)) == 0
    note = validity.unused_gpus(config, EIGHT_GPUS)
    assert (note in capsys.readouterr().err) is names
    lines = [finding.value for finding in doctor.findings(config, EIGHT_GPUS) if finding.fact == "GPUs"]
    assert lines[0].endswith("; CUDA_VISIBLE_DEVICES: '0,3'")
    assert lines[1:] == [note]
