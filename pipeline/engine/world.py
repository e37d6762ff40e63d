"""Who am I among the processes, and how do we add up. The only user of torch.distributed; it also fixes the arithmetic.

One process is a world too: the functions below then have nothing to exchange and return at once.
"""

import os
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


def from_env(environ: Mapping[str, str], device: DeviceKind) -> World:
    """The place that the launcher gave (all launchers set the same variables); without one, a single process."""
    rank, local, size = (int(environ.get(key, default)) for key, default in _VARIABLES)
    return World(rank, local, size, torch.device(device, local) if device == "cuda" else torch.device("cpu"))


_VARIABLES = (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))


@contextmanager
def joined(world: World, timeout_seconds: int) -> Iterator[None]:
    """Inside the block the processes can exchange tensors; no wait on a peer lasts longer than the timeout."""
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    if not dist.is_torchelastic_launched() and world.size == 1:
        yield
        return
    backend = "nccl" if world.device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
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
