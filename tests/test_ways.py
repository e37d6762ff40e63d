"""Every way of running: launcher × parallel × precision × sync_bn × memory_format × device.

A cell runs, or is refused in these words. CPU cells run here; those that need a GPU are run by tests/gpu.

    python -m tests.test_ways        writes the table of ways in README.md and README.zh.md anew
"""

import itertools
import json
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

from benchmarks.harness.phrases import READMES, Say, fill, marked, part
from pipeline.base import files
from pipeline.config import params, validity
from pipeline.config.machine import Machine
from pipeline.config.params import Train
from pipeline.engine.choices import CLASS_WEIGHTS, LOSSES, OPTIMIZERS, PARALLELS, PRECISIONS, SYNC_BNS
from pipeline.engine.launchers import LAUNCHERS, srun
from tests.conftest import PROJECT
from tests.helpers import starts
from tests.helpers.choices import CPU_ONLY, MEMORY_FORMAT, PARALLEL, PRECISION, SYNC_BN, TWO_GPUS, with_lines
from tests.test_train import small_world


class Cell(NamedTuple):
    """One way of running."""

    launcher: str
    parallel: str
    precision: str
    sync_bn: str
    memory_format: str
    device: str

    def lines(self) -> dict[str, Any]:
        """The lines of params.yaml for this cell, with two processes where that is possible."""
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


def faults(cell: Cell, machine: Machine) -> list[str]:
    return validity.faults(with_lines(**cell.lines()), machine)


def expected(cell: Cell, machine: Machine) -> list[str]:
    """The refusals of a cell, written independently of the code."""
    launcher, parallel, precision, sync_bn, memory_format, device = cell
    cpu, alone, said = device == "cpu", parallel in ("single", "dp"), []
    if not cpu and not machine.cuda_devices and launcher != "slurm":
        said.append(
            "train.device: 'cuda' needs an NVIDIA GPU and its driver (found: none); "
            "make start writes params that suit this machine; allowed here: cpu"
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
                f"train.{key}: '{value}' needs Apex, which is not installed; make start writes params that suit this "
                f"machine; or use the container (make image); {instead}"
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
    """The refusals of pairs that give wrong numbers in half precision."""
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
    """The further refusals of elastic."""
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
from pathlib import Path
from pipeline import launch
from pipeline.config import params
from pipeline.engine import environment
config = params.load()
os.environ.update(environment.required_variables(config.train.threads, config.train.deterministic))
launch.with_restarts("tests.in_turn", config.run, Path("runs"))
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
    """The choices in params.yaml and the engine's tables are the same."""
    assert set(PRECISIONS) == set(PRECISION)
    assert set(PARALLELS) == set(PARALLEL) == {path.stem for path in (PROJECT / "pipeline/tracked").iterdir()}
    assert set(SYNC_BNS) == set(SYNC_BN)
    assert set(LAUNCHERS) == set(get_args(params.Launcher))
    assert set(OPTIMIZERS) == set(get_args(Train.model_fields["optimizer"].annotation))
    assert set(LOSSES) == set(get_args(Train.model_fields["loss"].annotation))
    assert set(CLASS_WEIGHTS) == set(get_args(Train.model_fields["class_weights"].annotation))


def test_srun_is_told_the_cores_of_a_task() -> None:
    """srun does not inherit --cpus-per-task from the job, so it is passed on if the job has it."""
    run = with_lines(run__launcher="slurm", run__processes=4, run__nodes=2).run
    plain = ["srun", "--nodes=2", "--ntasks=4", "--kill-on-bad-exit=1"]
    assert srun(run, {}) == plain
    assert srun(run, {"SLURM_CPUS_PER_TASK": "4"}) == [*plain[:3], "--cpus-per-task=4", plain[3]]


def table(say: Say) -> str:
    """The README's table of ways: what is not refused, on the CPU and on GPUs with Apex."""
    titles = [say(title) for title in ("`train.precision` on the CPU", "on GPUs", "on GPUs with Apex")]
    lines = [f"| `train.parallel` | {' | '.join(titles)} |", "|---|---|---|---|"]
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


BLOCK = marked("ways")


@pytest.mark.parametrize("language", READMES)
def test_the_readme_has_the_table(language: str) -> None:
    """Its table of ways, in both languages, is the one made here."""
    assert part(PROJECT, language, BLOCK) == table(READMES[language]), "run: python -m tests.test_ways"


if __name__ == "__main__":
    fill(PROJECT, BLOCK, table)
