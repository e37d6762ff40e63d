"""Every way of running: launcher × parallel × precision × sync_bn × memory_format × device.

A cell runs, or is refused in these words. CPU cells run here; those that need a GPU are run by tests/gpu.

    python -m tests.test_ways        writes the table of ways in README.md anew
"""

import itertools
import json
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

from pipeline.base import files
from pipeline.config import params, validity
from pipeline.config.machine import Machine
from pipeline.config.params import Params, Train
from pipeline.engine.choices import OPTIMIZERS, PARALLELS, PRECISIONS, SYNC_BNS
from pipeline.engine.launchers import LAUNCHERS, srun
from tests.conftest import PROJECT, change, on_cpu, read_params
from tests.helpers import starts
from tests.test_train import small_world

CPU_ONLY = Machine(cuda_devices=0, apex="missing", compiler=True)
TWO_GPUS = Machine(cuda_devices=2, apex="usable", compiler=True)
PRECISION, PARALLEL = get_args(params.Precision), get_args(params.Parallel)
SYNC_BN = get_args(Train.model_fields["sync_bn"].annotation)
MEMORY_FORMAT = get_args(Train.model_fields["memory_format"].annotation)


class Cell(NamedTuple):
    """One way of running."""

    launcher: str
    parallel: str
    precision: str
    sync_bn: str
    memory_format: str
    device: str

    def lines(self) -> dict[str, Any]:
        """The lines of params.yaml that choose it; two processes where there can be two."""
        return {
            "run__launcher": self.launcher, "run__processes": 1 if self.parallel in ("single", "dp") else 2,
            "train__parallel": self.parallel, "train__precision": self.precision, "train__sync_bn": self.sync_bn,
            "train__memory_format": self.memory_format, "train__device": self.device, "train__shards": 2,
        }  # fmt: skip


CELLS = [
    Cell(*choice)
    for choice in itertools.product(
        get_args(params.Launcher), PARALLEL, PRECISION, SYNC_BN, MEMORY_FORMAT, get_args(params.Device)
    )
]


@cache
def base() -> Params:
    return params.parse(change(on_cpu(read_params())))


def with_lines(**lines: Any) -> Params:
    """The base params with some lines changed, without reading them from YAML again."""
    config = base()
    for dotted, value in lines.items():
        section, key = dotted.split("__")
        config = config.model_copy(update={section: getattr(config, section).model_copy(update={key: value})})
    return config


def faults(cell: Cell, machine: Machine) -> list[str]:
    return validity.faults(with_lines(**cell.lines()), machine)


def expected(cell: Cell, machine: Machine) -> list[str]:
    """What each cell is refused for, said once more and independently of the code."""
    launcher, parallel, precision, sync_bn, memory_format, device = cell
    cpu, alone, said = device == "cpu", parallel in ("single", "dp"), []
    if not cpu and not machine.cuda_devices and launcher != "slurm":
        said.append(
            "train.device: 'cuda' needs an NVIDIA GPU and its driver (found: none); allowed here: cpu; "
            "to try the pipeline on this machine: make demo"
        )
    if cpu and precision == "tf32":
        said.append("train.precision: 'tf32' needs train.device: cuda; allowed on the CPU: fp32, bf16, fp16")
    if cpu and parallel == "dp":
        said.append("train.parallel: 'dp' needs train.device: cuda; allowed on the CPU: single, ddp, elastic")
    if cpu and sync_bn == "torch":
        said.append("train.sync_bn: 'torch' needs train.device: cuda; allowed on the CPU: none")
    instead = "without it: fp16 for O1 to O3, fp32 for O0, ddp for apex_ddp, torch for apex, sgd for fused_sgd"
    for key, value in (("precision", precision), ("parallel", parallel), ("sync_bn", sync_bn)):
        if value[0] != "O" and "apex" not in value:
            continue
        if cpu:
            said.append(
                f"train.{key}: '{value}' needs train.device: cuda, because Apex does nothing on a CPU; {instead}"
            )
        if machine.apex == "missing":
            said.append(
                f"train.{key}: '{value}' needs Apex, which is not installed; use the container (make image); {instead}"
            )
    if parallel == "apex_ddp" and memory_format == "channels_last":
        said.append(
            "train.memory_format: 'channels_last' × train.parallel: 'apex_ddp' mixes up the gradients of "
            "convolutions; allowed: contiguous, or train.parallel: ddp"
        )
    if parallel == "dp" and precision[0] == "O":
        said.append(
            f"train.precision: '{precision}' × train.parallel: 'dp': Apex changes the first replica only; "
            "allowed: a native precision, or train.parallel: ddp"
        )
    if sync_bn != "none" and alone:
        said.append(
            f"train.sync_bn: '{sync_bn}' × train.parallel: '{parallel}': there is only one process; "
            "allowed: none, or train.parallel: ddp with several"
        )
    return said + expected_of_half_precision(cell) + (expected_of_elastic(cell) if parallel == "elastic" else [])


def expected_of_half_precision(cell: Cell) -> list[str]:
    """What would compute with wrong numbers."""
    _, parallel, precision, sync_bn, _, _ = cell
    said = []
    if parallel == "apex_ddp" and precision == "bf16":
        said.append(
            "train.precision: 'bf16' × train.parallel: 'apex_ddp': Apex DDP does not reduce bf16 gradients; "
            "allowed: any other precision, or train.parallel: ddp"
        )
    if parallel == "dp" and precision == "bf16":
        said.append(
            "train.precision: 'bf16' × train.parallel: 'dp': torch runs the replicas' autocast in fp16, "
            "without a loss scale; allowed: any other native precision, or train.parallel: ddp"
        )
    if (sync_bn, precision) == ("apex", "bf16"):
        said.append(
            "train.sync_bn: 'apex' × train.precision: 'bf16': Apex's kernels have no bf16; "
            "allowed: torch, or another precision"
        )
    if (sync_bn, precision) == ("torch", "O3"):
        said.append(
            "train.sync_bn: 'torch' × train.precision: 'O3': its counts of values overflow in half precision; "
            "allowed: apex, or another precision"
        )
    return said


def expected_of_elastic(cell: Cell) -> list[str]:
    """What elastic is refused for besides."""
    said = []
    if cell.precision[0] == "O":
        said.append(
            f"train.precision: '{cell.precision}' × train.parallel: 'elastic': Apex keeps its own gradients; "
            "allowed: a native precision, or train.parallel: ddp"
        )
    if cell.sync_bn != "none":
        said.append(
            f"train.sync_bn: '{cell.sync_bn}' × train.parallel: 'elastic': BatchNorm uses the images of one shard, "
            "which are in one process; allowed: none, or train.parallel: ddp"
        )
    return said


@pytest.mark.parametrize("machine", [CPU_ONLY, TWO_GPUS], ids=["cpu_only", "two_gpus"])
def test_every_cell_runs_or_is_refused_in_these_words(machine: Machine) -> None:
    """On a machine without a GPU, and on one with two and a usable Apex: 1,440 cells each."""
    assert len(CELLS) == 3 * 5 * 8 * 3 * 2 * 2
    for cell in CELLS:
        assert faults(cell, machine) == expected(cell, machine), cell


# Slurm's cells are run by tests/test_nodes.py: they need its variables, or srun.
ON_THE_CPU = [cell for cell in CELLS if not faults(cell, CPU_ONLY) and cell.launcher != "slurm"]


# Has the launcher of a folder's params start tests.in_turn, as pipeline.launch would have it start pipeline.train.
LAUNCHING = """
import os
from pipeline import launch
from pipeline.config import params
from pipeline.engine import environment
config = params.load()
os.environ.update(environment.required_variables(config.train.threads, config.train.deterministic))
launch.with_restarts("tests.in_turn", config.run)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], dict[Cell, Path]]:
    """Gives the finished trainings of all cells of a launcher and a parallel: one start for them all, to save time."""

    @cache
    def run(launcher: str, parallel: str) -> dict[Cell, Path]:
        top = tmp_path_factory.mktemp(f"{launcher}_{parallel}")
        cells = [cell for cell in ON_THE_CPU if (cell.launcher, cell.parallel) == (launcher, parallel)]
        lines: dict[str, Any] = {"train__model": "mobilenet_v3_small", "train__lr": 0.02, "train__batch_size": 6}
        folders = {cell: small_world(top / "-".join(cell), **cell.lines(), **lines) for cell in cells}
        environ = {**os.environ, "FOLDERS": ":".join(map(str, folders.values()))}
        command = [sys.executable, "-c", LAUNCHING]
        done = starts.run(command, ranks=2, cwd=folders[cells[0]], env=environ)
        assert done.returncode == 0, done.stderr
        return folders

    return run


SPAWNED = pytest.mark.slow("the same cells as torchrun's; make test spawns processes elsewhere, and compares bytes")


@pytest.mark.parametrize(
    "cell",
    [pytest.param(c, marks=SPAWNED) if c.launcher == "spawn" else c for c in ON_THE_CPU],
    ids="-".join,
)
def test_a_cell_that_is_not_refused_runs(cell: Cell, ran: Callable[[str, str], dict[Cell, Path]]) -> None:
    """Real processes train two epochs, and the loss falls."""
    folder = ran(cell.launcher, cell.parallel)[cell]
    provenance = json.loads(next(folder.glob("runs/*/provenance.json")).read_text())
    assert provenance["processes"] == cell.lines()["run__processes"]
    first, last = (float(row["train_loss"]) for row in files.read_csv(folder / "metrics/history.csv"))
    assert last < first


def test_the_cells_that_run_on_the_cpu_are_these() -> None:
    """Two launchers, alone, with DDP or elastic, in three precisions and two memory formats."""
    assert len(ON_THE_CPU) == 2 * 3 * 3 * 2


def test_the_tables_have_a_member_for_every_choice() -> None:
    """What params.yaml may name is what the engine's tables hold, and the other way round."""
    assert set(PRECISIONS) == set(PRECISION)
    assert set(PARALLELS) == set(PARALLEL) == {path.stem for path in (PROJECT / "pipeline/tracked").iterdir()}
    assert set(SYNC_BNS) == set(SYNC_BN)
    assert set(LAUNCHERS) == set(get_args(params.Launcher))
    assert set(OPTIMIZERS) == set(get_args(Train.model_fields["optimizer"].annotation))


# On two GPUs with Apex, two processes with DDP, a moving average at hand, a place for nodes to meet: then every one of
# these choices runs, alone.
CHOICES: dict[str, tuple[Any, ...]] = {
    "train__precision": PRECISION, "train__parallel": ("ddp", "single", "dp", "apex_ddp", "elastic"),
    "train__sync_bn": SYNC_BN, "train__memory_format": MEMORY_FORMAT, "train__compile": (False, True),
    "train__gradient_checkpointing": (False, True), "train__freeze_backbone": (False, True),
    "train__optimizer": tuple(OPTIMIZERS), "train__export": ("last", "best", "ema"), "train__ema_decay": (0.9, 0.0),
    "train__accumulation_steps": (1, 2), "train__schedule": get_args(Train.model_fields["schedule"].annotation),
    "train__clip_norm": (0.0, 1.0), "train__mixup": (0.0, 0.2), "train__cutmix": (0.0, 1.0),
    "run__launcher": get_args(params.Launcher), "run__processes": (2, 1), "run__nodes": (1, 2),
}  # fmt: skip

# The pairs that are refused. Whatever pair is not here must be accepted.
BARRED = {
    frozenset(pair)
    for pair in (
        ("parallel=single", "processes=2"), ("parallel=dp", "processes=2"),
        ("parallel=single", "nodes=2"), ("parallel=dp", "nodes=2"),
        ("parallel=single", "sync_bn=torch"), ("parallel=single", "sync_bn=apex"),
        ("parallel=dp", "sync_bn=torch"), ("parallel=dp", "sync_bn=apex"),
        ("parallel=dp", "precision=O0"), ("parallel=dp", "precision=O1"),
        ("parallel=dp", "precision=O2"), ("parallel=dp", "precision=O3"), ("parallel=dp", "precision=bf16"),
        ("sync_bn=apex", "precision=bf16"), ("sync_bn=torch", "precision=O3"),
        ("parallel=dp", "compile=True"), ("parallel=dp", "gradient_checkpointing=True"),
        ("parallel=elastic", "precision=O0"), ("parallel=elastic", "precision=O1"),
        ("parallel=elastic", "precision=O2"), ("parallel=elastic", "precision=O3"),
        ("parallel=elastic", "sync_bn=torch"), ("parallel=elastic", "sync_bn=apex"),
        ("parallel=elastic", "compile=True"), ("parallel=elastic", "accumulation_steps=2"),
        ("parallel=apex_ddp", "memory_format=channels_last"), ("parallel=apex_ddp", "precision=bf16"),
        ("compile=True", "gradient_checkpointing=True"),
        ("compile=True", "precision=O0"), ("compile=True", "precision=O1"), ("compile=True", "precision=O2"),
        ("compile=True", "precision=O3"),
        ("gradient_checkpointing=True", "precision=O1"), ("gradient_checkpointing=True", "freeze_backbone=True"),
        ("sync_bn=torch", "freeze_backbone=True"), ("sync_bn=apex", "freeze_backbone=True"),
        ("sync_bn=torch", "processes=1"), ("sync_bn=apex", "processes=1"),
        ("export=ema", "ema_decay=0.0"),
        ("launcher=spawn", "nodes=2"), ("processes=1", "nodes=2"),
    )
}  # fmt: skip


def test_no_pair_of_choices_is_left_open() -> None:
    """Every pair of choices is walked: it is refused if it is listed, and accepted if it is not."""
    usual = {key: options[0] for key, options in CHOICES.items()} | {
        "train__device": "cuda", "train__shards": 4, "run__rendezvous": "node0:29400",
    }  # fmt: skip
    refused = set()
    for (key, options), (other, others) in itertools.combinations(CHOICES.items(), 2):
        for value, second in itertools.product(options, others):
            lines = usual | {key: value, other: second}
            if lines["train__parallel"] in ("single", "dp") and "run__processes" not in (key, other):
                lines["run__processes"] = 1
            if validity.faults(with_lines(**lines), TWO_GPUS):
                refused.add(frozenset(f"{k.split('__')[1]}={v}" for k, v in ((key, value), (other, second))))
    assert refused == BARRED


@pytest.mark.parametrize(
    ("lines", "machine", "sentence"),
    [
        ({"train__model": "resnet43"}, CPU_ONLY,
         "train.model: 'resnet43' is not one of torchvision's 80 classification models; "
         "did you mean resnet34, resnet50, resnet18?"),
        ({"train__crop_scale": (0.9, 0.1)}, CPU_ONLY,
         "train.crop_scale: [0.9, 0.1] is in the wrong order; allowed: [minimum, maximum]"),
        ({"train__eval_crop": 64}, CPU_ONLY,
         "train.eval_crop: 64 does not fit into train.eval_resize (36); allowed: up to 36"),
        ({"train__momentum": 0.0}, CPU_ONLY,
         "train.nesterov: true needs momentum (train.momentum: 0); allowed: false, or train.momentum > 0"),
        ({"train__warmup_epochs": 2.0}, CPU_ONLY,
         "train.warmup_epochs: 2.0 is longer than the training; allowed: 0 to train.epochs (1)"),
        ({"train__parallel": "ddp", "run__processes": 3}, CPU_ONLY,
         "train.batch_size: 8 does not divide by run.processes × train.accumulation_steps (3); "
         "allowed: a multiple of 3, such as 6"),
        ({"train__accumulation_steps": 16}, CPU_ONLY,
         "train.batch_size: 8 does not divide by run.processes × train.accumulation_steps (16); "
         "allowed: a multiple of 16, such as 16"),
        ({"run__processes": 2}, CPU_ONLY,
         "run.processes: 2 × train.parallel: 'single' would train that many models; "
         "allowed: 1; for several processes: train.parallel: ddp"),
        ({"train__device": "cuda", "train__parallel": "ddp", "run__processes": 4}, TWO_GPUS,
         "run.processes: 4 on a node is more than the GPUs visible here (2); "
         "allowed: 1 to 2; CUDA_VISIBLE_DEVICES chooses them"),
        ({"train__device": "cuda", "run__launcher": "slurm"}, Machine(0, "missing", True, slurm_step=True),
         "train.device: 'cuda' needs an NVIDIA GPU and its driver (found: none); allowed here: cpu; "
         "to try the pipeline on this machine: make demo"),
        ({"train__device": "cuda", "train__parallel": "ddp", "run__processes": 4, "run__launcher": "slurm"},
         Machine(1, "missing", True, slurm_step=True),
         "run.processes: 4 on a node is more than the GPUs visible here (1); allowed: 1 to 1; "
         "ask for GPUs by node (--gres=gpu:4, not --gpus-per-task), or add --gpu-bind=none"),
        ({"train__device": "cuda", "train__precision": "O1"}, Machine(2, "without amp", True),
         "train.precision: 'O1' needs apex.amp and apex.parallel, which the installed Apex no longer has; use the "
         "container (make image); without it: fp16 for O1 to O3, fp32 for O0, ddp for apex_ddp, torch for apex, "
         "sgd for fused_sgd"),
        ({"train__device": "cuda", "train__optimizer": "fused_sgd"}, Machine(2, "without extensions", True),
         "train.optimizer: 'fused_sgd' needs Apex's extensions amp_C, apex_C and syncbn, which the installed Apex was "
         "built without; use the container (make image); without it: fp16 for O1 to O3, fp32 for O0, ddp for "
         "apex_ddp, torch for apex, sgd for fused_sgd"),
        ({"train__device": "cuda"}, Machine(1, "missing", True, cuda_driver=12, cuda_of_torch=13),
         "train.device: 'cuda': the NVIDIA driver knows CUDA up to 12, the installed torch needs 13; "
         "install a newer driver; allowed here: cpu"),
        ({"train__device": "cuda"}, Machine(3, "missing", True, compute_capabilities=((9, 0), (7, 0), (7, 0))),
         "train.device: 'cuda': a GPU of compute capability 7.0 is visible, the installed torch has code for 7.5 and "
         "later; hide it (CUDA_VISIBLE_DEVICES), or take another GPU; allowed here: cpu"),
        ({"train__device": "cuda", "train__model": "vgg16"}, TWO_GPUS,
         "train.model: 'vgg16' × train.deterministic: true on a GPU: its adaptive_avg_pool2d has no deterministic "
         "backward pass; allowed: another model, or train.deterministic: false"),
        ({"train__precision": "bf16", "train__crop": 16}, CPU_ONLY,
         "train.precision: 'bf16' × train.crop: 16 on the CPU: convolutions of maps of one pixel are not the same "
         "every time; allowed: fp32, a crop of at least 32, or train.deterministic: false"),
        ({"train__compile": True}, Machine(0, "missing", False),
         "train.compile: true needs a C++ compiler (found: none); allowed here: false, or install g++"),
        ({"train__cuda_graphs": True, "train__parallel": "ddp"}, CPU_ONLY,
         "train.cuda_graphs: true needs train.device: cuda and train.compile: true and train.parallel: single; "
         "allowed here: false"),
        ({"train__device": "cuda", "train__parallel": "ddp", "train__sync_bn": "torch"}, TWO_GPUS,
         "train.sync_bn: 'torch' × run.processes: 1: there is nothing to synchronize; "
         "allowed: none, or more processes"),
        ({"train__export": "ema"}, CPU_ONLY,
         "train.export: 'ema' needs train.ema_decay > 0, such as 0.999; allowed without: last, best"),
        ({"train__parallel": "elastic", "run__processes": 5, "train__shards": 4}, CPU_ONLY,
         "run.processes: 5 is more than train.shards (4); allowed: 1 to 4, or more shards"),
        ({"train__parallel": "elastic", "train__shards": 3}, CPU_ONLY,
         "train.batch_size: 8 with train.shards: 3: every shard needs the same number of images, "
         "at least two for BatchNorm; allowed: 6 or a larger multiple of 3, such as 9"),
        ({"train__parallel": "elastic"}, CPU_ONLY,
         "train.batch_size: 8 with train.shards: 8: every shard needs the same number of images, "
         "at least two for BatchNorm; allowed: 16 or a larger multiple of 8, such as 16"),
        ({"train__parallel": "elastic", "train__shards": 4, "train__deterministic": False}, CPU_ONLY,
         "train.deterministic: false × train.parallel: 'elastic': elastic is for identical weights, which need "
         "train.deterministic: true; allowed: true, or train.parallel: ddp"),
        ({"run__min_processes": 1}, CPU_ONLY,
         "run.min_processes: 1 needs train.parallel: elastic, run.launcher: torchrun, run.nodes: 2 and "
         "run.max_restarts > 0; allowed without: 0"),
        ({"train__parallel": "elastic", "train__shards": 4, "run__processes": 4, "run__nodes": 2,
          "run__min_processes": 3, "run__max_restarts": 1}, CPU_ONLY,
         "run.min_processes: 3 is not the number of processes per node; allowed: 2, or 0 to stop when a node is lost"),
        ({"run__nodes": 2}, CPU_ONLY,
         "run.processes: 1 does not divide by run.nodes (2); allowed: a multiple of 2"),
        ({"run__node_rank": 1}, CPU_ONLY, "run.node_rank: 1 is not one of 1 nodes; allowed: 0 to 0"),
        ({"split__fold": 10}, CPU_ONLY, "split.fold: 10 is not one of 10 folds; allowed: 0 to 9"),
        ({"split__folds": 5}, CPU_ONLY,
         "split.fractions.test: 0.1 with split.folds: 5 would not test every image once; "
         "allowed: 0.2, or split.folds: 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_these_words(lines: dict[str, Any], machine: Machine, sentence: str) -> None:
    """A refusal names the key, the value, what is allowed, and the remedy."""
    assert sentence in validity.faults(with_lines(**lines), machine)


def test_srun_is_told_the_cores_of_a_task() -> None:
    """srun does not inherit --cpus-per-task from the job, so it is named; where the job has none, nothing is."""
    run = with_lines(run__launcher="slurm", run__processes=4, run__nodes=2).run
    plain = ["srun", "--nodes=2", "--ntasks=4", "--kill-on-bad-exit=1"]
    assert srun(run, {}) == plain
    assert srun(run, {"SLURM_CPUS_PER_TASK": "4"}) == [*plain[:3], "--cpus-per-task=4", plain[3]]


def test_a_login_node_of_slurm_needs_no_gpu() -> None:
    """There, only what srun starts looks for GPUs: on its own node."""
    lines = {"train__device": "cuda", "run__launcher": "slurm", "train__parallel": "ddp", "run__processes": 4}
    assert validity.faults(with_lines(**lines), CPU_ONLY) == []
    assert validity.faults(with_lines(**lines), Machine(1, "missing", True)) == []


def test_nodes_need_a_place_to_meet() -> None:
    """Two nodes with the default rendezvous, or with spawn, are refused."""
    lines = {"run__nodes": 2, "run__processes": 2, "train__parallel": "ddp"}
    assert validity.faults(with_lines(**lines), CPU_ONLY) == [
        "run.rendezvous: 'localhost:0' × run.nodes: 2: every node needs the address of node 0; "
        "allowed: host:port of node 0, such as node0:29400"
    ]
    assert validity.faults(with_lines(**lines, run__launcher="spawn"), CPU_ONLY) == [
        "run.nodes: 2 × run.launcher: 'spawn', which starts processes on one node; allowed: 1, or torchrun or slurm"
    ]


def table() -> str:
    """The table of ways in README.md: what is not refused, on the CPU and on GPUs with Apex."""
    lines = ["| `train.parallel` | `train.precision` on the CPU | on GPUs | on GPUs with Apex |", "|---|---|---|---|"]
    for parallel in PARALLEL:
        cells = [Cell("torchrun", parallel, precision, "none", "contiguous", "cpu") for precision in PRECISION]
        row = [
            " ".join(cell.precision for cell in cells if not faults(cell._replace(device=device), machine)) or "–"
            for device, machine in (
                ("cpu", CPU_ONLY), ("cuda", Machine(2, "missing", True)), ("cuda", TWO_GPUS)
            )
        ]  # fmt: skip
        lines.append(f"| `{parallel}` | {' | '.join(row)} |")
    return "\n".join(lines)


BLOCK = re.compile(r"(?<=<!-- ways -->\n).*?(?=<!-- /ways -->)", re.DOTALL)


def test_the_readme_has_the_table() -> None:
    """README.md's table of ways is the one made here."""
    found = BLOCK.search((PROJECT / "README.md").read_text())
    assert found is not None
    assert found.group().strip() == table(), "run: python -m tests.test_ways"


if __name__ == "__main__":
    readme = PROJECT / "README.md"
    readme.write_text(BLOCK.sub(lambda _: table() + "\n", readme.read_text()))
