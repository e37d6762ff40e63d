"""Who am I among the processes, and how do we add up. The only user of torch.distributed; it also fixes the arithmetic.

One process is a world too: the functions below then have nothing to exchange and return at once.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

DeviceKind = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class World:
    """A process's place: `rank` of `size` over all machines, `local_rank` on this one, and its device."""

    rank: int
    local_rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process speaks for all: it logs and writes."""
        return self.rank == 0


# Who tells a process its place, and in which variables: rank, local rank, size. torchrun comes first, for it may itself
# run inside a Slurm job; a process of a job that srun did not start has no SLURM_STEP_NUM_TASKS.
PLACES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
)


def from_env(environ: Mapping[str, str], device: DeviceKind) -> World:
    """The place that torchrun or `spawn` (which sets the same variables) or Slurm's srun gave; else a single process."""
    names = next((names for names in PLACES if all(name in environ for name in names)), None)
    rank, local, size = (int(environ[name]) for name in names) if names else (0, 0, 1)
    return World(rank, local, size, torch.device(device, local) if device == "cuda" else torch.device("cpu"))


def meeting_point(environ: Mapping[str, str]) -> str:
    """Where the processes meet: torchrun and `spawn` name it; under Slurm it is derived from the job."""
    if "MASTER_ADDR" in environ:
        return "env://"
    job, step = int(environ["SLURM_JOB_ID"]), int(environ["SLURM_STEP_ID"])
    # A port of its own for every step of every job, below those that the system hands out by itself.
    return f"tcp://{first_host(environ['SLURM_STEP_NODELIST'])}:{15000 + (job * 31 + step) % 15000}"


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list such as `a,b` or `gpu[07-09,12],cpu1` [Slurm, hostlist expressions]."""
    match = re.match(r"([^,\[]+)(?:\[([^],-]+)[^]]*\]([^,]*))?", nodelist)
    if match is None:
        raise ValueError(f"SLURM_STEP_NODELIST: {nodelist!r} is no list of hosts")
    return "".join(part or "" for part in match.groups())


@contextmanager
def joined(world: World, timeout_seconds: int) -> Iterator[None]:
    """Inside the block the processes can exchange tensors; no wait on a peer lasts longer than the timeout."""
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    if not any(names[0] in os.environ for names in PLACES):
        yield
        return
    dist.init_process_group(
        "nccl" if world.device.type == "cuda" else "gloo",
        init_method=meeting_point(os.environ),
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=timeout_seconds),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def fix_arithmetic(threads: int, deterministic: bool) -> None:
    """Pin what decides bits: compute threads, and with `deterministic` one algorithm for everything, or an error.

    The number of threads decides how a sum is cut [measured: 1 and 2 threads differ], and torchrun would set it only
    for more than one process, so it is set here, for every launcher alike.
    """
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = deterministic
    torch.use_deterministic_algorithms(deterministic)


def environment(threads: int, deterministic: bool) -> dict[str, str]:
    """Variables that must be set before a process loads its libraries."""
    fixed = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # DDP would warn in every process that it looks for unused parameters in vain: that is meant (see parallel.py).
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    if deterministic:  # cuBLAS is deterministic only with a fixed workspace [NVIDIA cuBLAS, "Results reproducibility"]
        fixed["CUBLAS_WORKSPACE_CONFIG"] = os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return fixed


def total(values: Tensor) -> Tensor:
    """Sum `values` over all processes, in place; every process gets the same bytes."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def collected(parts: list[Tensor], indices: list[int], count: int) -> list[Tensor]:
    """Put the parts that the processes hold into one list by their index in [0, count); every process gets all of it.

    Bytes are moved, nothing is added, so the result is the same for every number of processes.
    """
    mine = dict(zip(indices, [part.cpu() for part in parts], strict=True))
    if dist.is_initialized():
        everyone: list[dict[int, Tensor]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(everyone, mine)
        mine = {index: part for held in everyone for index, part in held.items()}
    return [mine[index] for index in range(count)]


def share_buffers(model: nn.Module) -> None:
    """Give every process rank 0's buffers (BatchNorm statistics), as before any evaluation and in what is saved."""
    if dist.is_initialized():
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def barrier() -> None:
    """Wait for all processes."""
    if dist.is_initialized():
        dist.barrier()
