"""Every refusal of params, rendered: its key, its kind and its form. No other test reads the words of one."""

import ast
import re
from contextlib import suppress
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.base import errors
from pipeline.base.errors import Fault, Kind, UserError
from pipeline.checks import rules, validity
from pipeline.checks.machine import Machine
from pipeline.checks.rules import PAIRS, Pair
from pipeline.config import params
from tests.conftest import PROJECT
from tests.helpers.choices import CHOICES, CPU_ONLY, TWO_GPUS, with_lines
from tests.helpers.refusals import check_form

# Values of the keys that no pair of CHOICES has: each row of the rules finds some for all of its keys.
VALUES: dict[str, tuple[Any, ...]] = CHOICES | {
    "train.freeze_norm": (True,), "train.temperature": ("none",),
    "train.head": ("solved",), "train.erasing": (0.5,), "train.color_jitter": (0.5,),
    "train.device": ("cuda", "cpu"), "train.arithmetic": ("portable",), "train.deterministic": (True, False),
    "train.cuda_graphs": (True,), "train.model": ("timm/resnet18", "vgg11", "vit_b_16"), "train.crop": (16,),
    "train.eval_crop": (32,), "train.weights": ("imagenet", "none"), "train.nesterov": (True,),
    "train.momentum": (0.0,), "data.source": ("torchvision/MNIST",), "split.min_side": (32,),
    "split.phash_distance": (8,), "run.max_restarts": (0,), "run.min_processes": (1,),
    "run.rendezvous": ("localhost:0",),
}  # fmt: skip


def config_for(row: Pair) -> params.Params:
    """Params to which the row applies."""
    lacking = row.conditions.keys() - VALUES.keys()
    assert not lacking, f"VALUES in tests/test_refusals.py needs {', '.join(lacking)}: each with a value of the row"
    return with_lines(**{
        key: next(value for value in VALUES[key] if rules.contains(values, value))
        for key, values in row.conditions.items()
    })  # fmt: skip


@pytest.mark.parametrize("row", PAIRS, ids=lambda row: f"{row.key}-{row.other}-{rules.words(row.others)}")
def test_every_row_is_rendered(row: Pair) -> None:
    """A row refuses its own pair, and names the keys and their values. What it allows instead, it does not refuse."""
    config = config_for(row)
    fault = row.fault(config)
    assert fault in rules.faults(config)
    assert (fault.key, fault.kind) == (row.key, "pair")
    assert all(f"{key}: " in str(fault) for key in row.conditions)
    check_form(fault)
    for part in re.split(r", (?:or )?| or |; ", row.allowed):
        key, _, value = part.rpartition(": ")
        with suppress(UserError):  # words, such as "another model"
            allowed = params.with_values(config, {key or row.key: YAML(typ="safe", pure=True).load(value)})
            assert not row.applies(allowed), part


def test_no_pair_is_in_two_rows() -> None:
    """Each row refuses params that no row before it refuses for the same two keys."""
    for row in PAIRS:
        same = [one for one in PAIRS if one.applies(config_for(row)) and {one.key, one.other} == {row.key, row.other}]
        assert same == [row]


GPU, SLURM = {"train__device": "cuda"}, Machine(1, "missing", True, slurm_step=True)
WITHOUT_FMA = Machine(0, "missing", True, missing_cpu_features=("FMA",))
ELASTIC = {"train__parallel": "elastic", "train__shards": 4}
FOUR = {**GPU, "train__parallel": "ddp", "run__processes": 4}
OTHERS: list[tuple[dict[str, Any], Machine, str, Kind]] = [
    ({"train__model": "resnet43"}, CPU_ONLY, "train.model", "unknown"),
    ({"train__model": "nothing like it"}, CPU_ONLY, "train.model", "unknown"),
    ({"train__weights": "mine.pth"}, CPU_ONLY, "train.weights", "value"),
    ({"train__crop_scale": (0.9, 0.1)}, CPU_ONLY, "train.crop_scale", "value"),
    ({"train__eval_crop": 64}, CPU_ONLY, "train.eval_crop", "pair"),
    ({"train__crop_from": 32}, CPU_ONLY, "train.crop_from", "pair"),
    ({"train__crop_from": 15}, CPU_ONLY, "train.crop_from", "pair"),
    ({"train__parallel": "ddp", "run__processes": 3}, CPU_ONLY, "train.batch_size", "value"),
    ({"train__accumulation_steps": 16}, CPU_ONLY, "train.batch_size", "value"),
    (ELASTIC | {"train__shards": 3}, CPU_ONLY, "train.batch_size", "value"),
    (ELASTIC | {"train__shards": 8}, CPU_ONLY, "train.batch_size", "value"),
    (ELASTIC | {"run__processes": 5}, CPU_ONLY, "run.processes", "value"),
    (ELASTIC | {"run__processes": 4, "run__nodes": 2, "run__min_processes": 3, "run__max_restarts": 1,
                "run__rendezvous": "node0:29400"}, CPU_ONLY, "run.min_processes", "value"),
    ({"run__nodes": 2, "run__rendezvous": "node0:29400"}, CPU_ONLY, "run.processes", "value"),
    ({"run__node_rank": 1}, CPU_ONLY, "run.node_rank", "value"),
    ({"run__processes": 16, "train__parallel": "ddp", "train__batch_size": 16}, CPU_ONLY, "run.processes", "machine"),
    (FOUR, TWO_GPUS, "run.processes", "machine"),
    (FOUR | {"run__launcher": "slurm"}, SLURM, "run.processes", "machine"),
    (GPU | {"run__launcher": "slurm"}, Machine(0, "missing", True, slurm_step=True), "train.device", "machine"),
    (GPU, CPU_ONLY, "train.device", "machine"),
    (GPU, Machine(1, "missing", True, cuda_driver=12, cuda_of_torch=13), "train.device", "machine"),
    (GPU, Machine(3, "missing", True, compute_capabilities=((9, 0), (7, 0), (7, 0))), "train.device", "machine"),
    (GPU | {"train__precision": "O1"}, Machine(2, "without amp", True), "train.precision", "machine"),
    (GPU | {"train__optimizer": "fused_sgd"}, Machine(2, "without extensions", True), "train.optimizer", "machine"),
    ({"train__compile": True}, Machine(0, "missing", False), "train.compile", "machine"),
    ({"train__arithmetic": "portable"}, WITHOUT_FMA, "train.arithmetic", "machine"),
    ({}, Machine(0, "missing", True, stale_files=("requirements/lock.txt",)), "requirements/lock.txt", "differs"),
    ({}, Machine(0, "missing", True, other_packages=("a 1 (locked: 2)",) * 9), "requirements/lock.txt", "machine"),
    ({"split__group": "patient"}, CPU_ONLY, "split.group", "value"),
    ({"split__group": "(a)(b)"}, CPU_ONLY, "split.group", "value"),
    ({"split__group": "a("}, CPU_ONLY, "split.group", "value"),
    ({"split__folds": 10, "split__fold": 10}, CPU_ONLY, "split.fold", "value"),
    ({"split__fold": 1}, CPU_ONLY, "split.fold", "value"),
    ({"split__fractions": params.Fractions(train=0.5)}, CPU_ONLY, "split.fractions", "value"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "machine", "key", "kind"), OTHERS)
def test_what_cannot_be_is_refused_by_key_and_kind(
    lines: dict[str, Any], machine: Machine, key: str, kind: Kind
) -> None:
    """What depends on the machine, or relates two numbers, gives one fault."""
    (fault,) = validity.faults(with_lines(**lines), machine)
    assert (fault.key, fault.kind) == (key, kind)
    check_form(fault)


def test_every_fault_in_the_code_says_what_to_do() -> None:
    """Each call of Fault gives what is allowed or the remedy: also where no test comes by. mypy checks its kind."""
    calls = [
        (path.name, node)
        for path in (PROJECT / "pipeline").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Fault"
    ]
    assert len(calls) > 40
    for name, call in calls:
        keywords = {keyword.arg for keyword in call.keywords}
        assert len(call.args) > 4 or {"allowed", "remedy"} & keywords, f"{name}:{call.lineno}"


def test_a_fault_without_a_remedy_is_a_bug() -> None:
    with pytest.raises(ValueError, match="remedy"):
        Fault("train.lr", "-1", "value", "too small")


def test_a_message_has_the_first_faults_and_counts_the_others() -> None:
    """The error itself has all of them."""
    error = UserError(*(Fault(f"line {number}", "wrong", "value", allowed="right") for number in range(1010)))
    *lines, last = str(error).splitlines()
    assert len(lines) == errors.MOST_SHOWN
    assert f"{1010 - len(lines):,}" in last
    assert len(error.faults) == 1010
