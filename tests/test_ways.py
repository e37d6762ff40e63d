"""Every way of running: launcher × parallel × precision × sync_bn × memory_format × device.

A cell runs, or the rows of pipeline/checks/rules.py refuse it. CPU cells run here; those that need a GPU are run by
tests/gpu.
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

from pipeline.base import files
from pipeline.base.errors import Fault
from pipeline.checks import validity
from pipeline.checks.machine import Machine
from pipeline.config import params
from pipeline.config.params import Train
from pipeline.learning.choices import CLASS_WEIGHTS, LOSSES, OPTIMIZERS, PARALLELS, PRECISIONS, SYNC_BNS
from pipeline.running.launchers import LAUNCHERS, srun
from tests.conftest import PROJECT
from tests.helpers import starts
from tests.helpers.choices import CPU_ONLY, MEMORY_FORMAT, PARALLEL, PRECISION, SYNC_BN, with_lines
from tests.helpers.trainings import small_world


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


def faults(cell: Cell, machine: Machine) -> list[Fault]:
    return validity.faults(with_lines(**cell.lines()), machine)


# Slurm's cells are run by tests/test_nodes.py: they need its variables, or srun. One process needs no launcher.
ON_THE_CPU = [
    cell
    for cell in CELLS
    if cell.launcher != "slurm" and (cell.launcher, cell.parallel) != ("spawn", "single") and not faults(cell, CPU_ONLY)
]


# Has the launcher of a folder's params start tests.in_turn, where running/launch.py starts the processes of train.
LAUNCHING = """
import os
from pathlib import Path
from pipeline.running import launch
from pipeline.config import params
from pipeline.learning import environment
config = params.load()
os.environ.update(environment.required_variables(config.train.threads, config.train.deterministic))
launch.with_restarts(("tests.in_turn",), config.run, Path("runs"))
"""


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Callable[[str, str], dict[Cell, Path]]:
    """Gives the finished trainings of a launcher and a parallel: one start for all cells that are tested."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    all_cells = [call.params["cell"] for call in calls if call and "cell" in call.params]

    @cache
    def run(launcher: str, parallel: str) -> dict[Cell, Path]:
        top = tmp_path_factory.mktemp(f"{launcher}_{parallel}")
        cells = [cell for cell in all_cells if (cell.launcher, cell.parallel) == (launcher, parallel)]
        lines: dict[str, Any] = {"train__model": "mobilenet_v3_small", "train__lr": 0.02, "train__batch_size": 6}
        folders = {cell: small_world(top / "-".join(cell), **cell.lines(), **lines) for cell in cells}
        environ = {**os.environ, "FOLDERS": ":".join(map(str, folders.values()))}
        command = [sys.executable, "-c", LAUNCHING]
        done = starts.run(command, cwd=folders[cells[0]], env=environ)
        assert done.returncode == 0, done.stderr
        assert "strides do not match" not in done.stderr  # a warning of DDP at each start
        return folders

    return run


IN_MAKE_TEST = (("single", "fp32", "contiguous"), ("ddp", "bf16", "channels_last"))
FURTHER = pytest.mark.nightly("the cells share their code; make test-ci has elastic and spawn in other tests")


@pytest.mark.slow("a real start for each cell; make test has torchrun and spawn in test_pipeline.py")
@pytest.mark.parametrize(
    "cell",
    [
        cell
        if cell.launcher == "torchrun" and (cell.parallel, cell.precision, cell.memory_format) in IN_MAKE_TEST
        else pytest.param(cell, marks=FURTHER)
        for cell in ON_THE_CPU
    ],
    ids="-".join,
)
def test_a_cell_that_is_not_refused_runs(cell: Cell, runs: Callable[[str, str], dict[Cell, Path]]) -> None:
    """Real processes train two epochs, and the loss falls."""
    folder = runs(cell.launcher, cell.parallel)[cell]
    provenance = json.loads(next(folder.glob("runs/*/provenance.json")).read_text())
    assert provenance["processes"] == cell.lines()["run__processes"]
    first, last = (float(row["train_loss"]) for row in files.read_csv(folder / "metrics/history.csv"))
    assert last < first


def test_the_tables_have_a_member_for_every_choice() -> None:
    """The choices in params.yaml and the engine's tables are the same."""
    assert len(ON_THE_CPU) == (2 * 2 + 1) * 3 * 2
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
