"""Every way of running: launcher × parallel × precision × device. A cell runs, or is refused by one exact sentence.

python -m tests.test_ways        writes the table of ways in README.md anew
"""

import itertools
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from pipeline import files, params, validity
from pipeline.engine.parallel import PARALLELS
from pipeline.engine.precision import PRECISIONS
from pipeline.launch import LAUNCHERS
from pipeline.machine import Machine
from tests.conftest import PROJECT, change, on_cpu, read_params
from tests.test_train import launch, small_world

CPU_ONLY = Machine(cuda_devices=0, apex="missing")
TWO_GPUS = Machine(cuda_devices=2, apex="usable")

CELLS = [
    (launcher, parallel, precision, device)
    for launcher, parallel, precision, device in itertools.product(
        get_args(params.Launcher), get_args(params.Parallel), get_args(params.Precision), get_args(params.Device)
    )
]


def settings(launcher: str, parallel: str, precision: str, device: str) -> dict[str, Any]:
    """The lines of params.yaml that choose a way; two processes where there can be two."""
    return {
        "run__launcher": launcher, "train__parallel": parallel, "train__precision": precision, "train__device": device,
        "run__processes": 1 if parallel in ("single", "dp") else 2,
    }  # fmt: skip


def faults(cell: tuple[str, str, str, str], machine: Machine) -> list[str]:
    return validity.faults(params.parse(change(on_cpu(read_params()), **settings(*cell))), machine)


def expected(cell: tuple[str, str, str, str], machine: Machine) -> list[str]:
    """What each cell is refused for, said once more and independently of the code."""
    _, parallel, precision, device = cell
    said = []
    if device == "cuda" and not machine.cuda_devices:
        said.append(
            "train.device: 'cuda' needs an NVIDIA GPU and its driver (found: none); allowed here: cpu; "
            "to try the pipeline on this machine: make demo"
        )
    if precision not in ("fp32", "bf16"):
        said.append(
            f"train.precision: '{precision}' is not built yet; allowed: fp32, bf16; for mixed precision take bf16"
        )
    if parallel not in ("single", "ddp"):
        said.append(
            f"train.parallel: '{parallel}' is not built yet; allowed: single, ddp; for several processes take ddp"
        )
    return said


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
@pytest.mark.parametrize("machine", [CPU_ONLY, TWO_GPUS], ids=["cpu_only", "two_gpus"])
def test_a_cell_runs_or_is_refused_in_these_words(cell: tuple[str, str, str, str], machine: Machine) -> None:
    """On a machine without a GPU, and on one with two and a usable Apex."""
    assert faults(cell, machine) == expected(cell, machine)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if not faults(cell, CPU_ONLY)], ids="-".join)
def test_a_cell_that_is_not_refused_runs(cell: tuple[str, str, str, str], tmp_path: Path) -> None:
    """Real processes train two epochs, and the loss falls."""
    folder = small_world(tmp_path, **settings(*cell), train__lr=0.01, train__batch_size=6)
    launch(folder)
    first, last = (float(row["train_loss"]) for row in files.read_csv(folder / "metrics/history.csv"))
    assert last < first


def test_the_tables_and_the_choices_agree() -> None:
    """The members that are built are those that validity lets pass and params.yaml may name."""
    assert tuple(PRECISIONS) == validity.PRECISIONS
    assert tuple(PARALLELS) == validity.PARALLELS
    assert tuple(LAUNCHERS) == get_args(params.Launcher)
    assert set(PRECISIONS) <= set(get_args(params.Precision))
    assert set(PARALLELS) <= set(get_args(params.Parallel))


def table() -> str:
    """The table of ways in README.md."""
    lines = ["| `train.parallel` | `train.precision` | on the CPU | on GPUs |", "|---|---|---|---|"]
    for parallel, precision in itertools.product(get_args(params.Parallel), get_args(params.Precision)):
        cells = [("torchrun", parallel, precision, device) for device in ("cpu", "cuda")]
        cpu, cuda = ("no" if faults(cell, TWO_GPUS) else "yes" for cell in cells)
        lines.append(f"| {parallel} | {precision} | {cpu} | {cuda} |")
    return "\n".join(lines)


BLOCK = re.compile(r"(?<=<!-- ways -->\n).*?(?=\n<!-- /ways -->)", re.DOTALL)


def test_the_readme_has_the_table() -> None:
    """README.md's table of ways is the one made here."""
    found = BLOCK.search((PROJECT / "README.md").read_text())
    assert found is not None
    assert found.group() == table(), "run: python -m tests.test_ways"


if __name__ == "__main__":
    readme = PROJECT / "README.md"
    readme.write_text(BLOCK.sub(lambda _: table(), readme.read_text()))
