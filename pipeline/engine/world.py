"""The rank of this process and the world size, from the variables that the launcher sets."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from pipeline.base.errors import Fault, UserError, raise_if_any
from pipeline.config.params import Run

DeviceKind = Literal["cuda", "cpu"]

# The variables with a process's rank, local rank and world size. torchrun comes first: it may run inside a Slurm job.
# SLURM_STEP_NUM_TASKS is set only in processes that srun started.
LAUNCHER_VARIABLES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
)
MOST = 10_000  # processes of a run
START = "perennial train (or features, evaluate) starts its processes"


@dataclass(frozen=True)
class World:
    """The rank of this process, its rank on this machine, the world size, and its device."""

    rank: int
    local_rank: int
    size: int
    device: torch.device

    @classmethod
    def from_env(cls, environ: Mapping[str, str], device: DeviceKind) -> "World":
        """The world that torchrun, `spawn` or srun describes in the environment; a single process without a launcher.

        `spawn` sets the same variables as torchrun. Raises UserError for values that no launcher sets.
        """
        names = _variables(environ)
        rank, local_rank, size = (_number(environ[name]) for name in names) if names else (0, 0, 1)
        last = max(size, 1) - 1
        limits = zip(names, (rank, local_rank, size), ((0, last), (0, last), (1, MOST)), strict=False)
        raise_if_any(
            Fault(name, repr(environ[name]), "value", allowed=f"{least} to {most}", remedy=START)
            for name, value, (least, most) in limits
            if not least <= value <= most
        )
        return cls(
            rank, local_rank, size, torch.device("cuda", local_rank) if device == "cuda" else torch.device("cpu")
        )

    @property
    def is_main(self) -> bool:
        """Whether this process logs and writes files: rank 0 does."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """Which of `count` things, such as microbatches, this process works on."""
        return share(count, self.rank, self.size)


def check_size(world: World, run: Run) -> None:
    """Raise UserError if the launcher has started another number of processes than run.processes says.

    They would train another model than the one of dvc.lock. With run.min_processes fewer are allowed.
    """
    if not (run.min_processes or run.processes) <= world.size <= run.processes:
        reason = f"the launcher has started {world.size}"
        raise UserError(Fault("run.processes", str(run.processes), "differs", reason, remedy=START))


def _number(text: str) -> int:
    """A whole number of at most nine digits; -1 for any other text."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else -1


def share(count: int, rank: int, size: int) -> range:
    """Which of `count` things process `rank` of `size` works on: consecutive ones. Shares differ by one at most."""
    return range(count * rank // size, count * (rank + 1) // size)


def has_launcher(environ: Mapping[str, str]) -> bool:
    """Whether a launcher started this process."""
    return bool(_variables(environ))


def _variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the launcher's variables that are set; empty without a launcher."""
    return next((names for names in LAUNCHER_VARIABLES if all(name in environ for name in names)), ())
