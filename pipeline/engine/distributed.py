"""Who am I among the processes, and how do we add up. The only user of torch.distributed; it also fixes the arithmetic.

One process is a world too: the functions below then have nothing to exchange and return at once.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.base.errors import UserError

DeviceKind = Literal["cuda", "cpu"]
Store = dist.Store
T = TypeVar("T")
ENDED_NOTE = "PERENNIAL_ENDED_NOTE"  # the launcher's file in which a process that leaves says which one ended first
PEER_DIED = 76  # exit status of a process that leaves because another died


@dataclass(frozen=True)
class World:
    """The rank of this process, the world size, its rank on this machine, and its device."""

    rank: int
    local_rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process speaks for all: it logs and writes."""
        return self.rank == 0

    def share(self, parts: int) -> range:
        """Which parts of a global batch, cut into so many, this process works on."""
        return share(parts, self.rank, self.size)


def share(parts: int, rank: int, size: int) -> range:
    """Which of `parts` things `rank` of `size` processes works on: neighbours, one more or less than the others."""
    return range(parts * rank // size, parts * (rank + 1) // size)


# The variables in which launchers tell a process its rank, local rank and world size. torchrun comes first, for it may
# itself run inside a Slurm job; a process of a job that srun did not start has no SLURM_STEP_NUM_TASKS.
LAUNCHER_VARIABLES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
)


def _launcher_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the variables that are set here; empty if no launcher started this process."""
    return next((names for names in LAUNCHER_VARIABLES if all(name in environ for name in names)), ())


def from_env(environ: Mapping[str, str], device: DeviceKind) -> World:
    """The world as torchrun, `spawn` (which sets the same variables) or srun describes it; else a single process."""
    rank, local, size = (
        (int(environ[name]) for name in _launcher_variables(environ)) if _launcher_variables(environ) else (0, 0, 1)
    )
    return World(rank, local, size, torch.device(device, local) if device == "cuda" else torch.device("cpu"))


def rendezvous(environ: Mapping[str, str]) -> tuple[str, str]:
    """Where the processes meet: the host of rank 0, and what torch calls the init method.

    torchrun and `spawn` name them; under Slurm they are derived from the job.
    """
    if "MASTER_ADDR" in environ:
        return environ["MASTER_ADDR"], "env://"
    host = first_host(environ["SLURM_STEP_NODELIST"])
    job, step = int(environ["SLURM_JOB_ID"]), int(environ["SLURM_STEP_ID"])
    # A port of its own for every step of every job, below those that the system hands out by itself.
    return host, f"tcp://{host}:{15000 + (job * 31 + step) % 15000}"


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list such as `a,b`, `gpu[07-09,12],cpu1` or `rack[1-2]n[3-4]`.

    Raises ValueError if it is none. [Slurm, hostlist expressions]
    """
    first = re.match(r"(?:[^,\[\]]|\[[^\[\]]+\])+", nodelist)
    if first is None:
        raise ValueError(f"SLURM_STEP_NODELIST: {nodelist!r} is no list of hosts")
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first[0])


def connect_store(world: World, timeout_seconds: int) -> Store:
    """A store of small values that all processes see: through it they can talk before they can exchange tensors.

    Raises UserError if not all come in time.
    """
    if not _launcher_variables(os.environ):
        return dist.HashStore()
    _, method = rendezvous(os.environ)
    timeout = timedelta(seconds=timeout_seconds)
    try:
        met: Store = next(iter(dist.rendezvous(method, world.rank, world.size, timeout=timeout)))[0]
        return met
    except dist.DistError as error:
        raise UserError(
            f"run.timeout_seconds: {timeout_seconds}: process {world.rank} of {world.size} did not meet the others in "
            f"this time ({first_line(error)}); see what they say"
        ) from None


def gather_messages(store: Store, world: World, name: str, text: str) -> list[str]:
    """What every process says under a name, by rank. Raises UserError naming one that says nothing in time."""
    store.set(f"{name}/{world.rank}", text)
    said = [_receive(store, world, f"{name}/{rank}", rank) for rank in range(world.size)]
    store.set(f"{name}/read/{world.rank}", "")
    if world.is_main:  # it may keep the store, so it is the last to leave
        for rank in range(world.size):
            _receive(store, world, f"{name}/read/{rank}", rank)
    return said


def _receive(store: Store, world: World, key: str, rank: int) -> str:
    """What process `rank` has said. Raises UserError if it says nothing in time."""
    try:
        return str(store.get(key).decode())
    except dist.DistError as error:
        raise UserError(
            f"process {rank} of {world.size} said nothing within run.timeout_seconds, or its store is gone "
            f"({first_line(error)}); see what it says"
        ) from None


def first_line(error: Exception) -> str:
    """What torch says of an error, without the frames of C++ that follow it."""
    return str(error).partition("\n")[0]


@contextmanager
def join(world: World, timeout_seconds: int) -> Iterator[Store]:
    """`process_group`, where the processes have not met yet."""
    with process_group(world, timeout_seconds, connect_store(world, timeout_seconds)) as store:
        yield store


@contextmanager
def process_group(world: World, timeout_seconds: int, met: Store) -> Iterator[Store]:
    """Inside the block the processes can exchange tensors; no wait on a peer lasts longer than the timeout.

    Yields a store of small values that all of them see. Rank 0 keeps it, so it outlives a launcher that was killed.
    """
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    if not _launcher_variables(os.environ):
        yield met
        return
    timeout = timedelta(seconds=timeout_seconds)
    host, _ = rendezvous(os.environ)
    dist.init_process_group(
        "nccl" if world.device.type == "cuda" else "gloo",
        store=dist.PrefixStore("group", met),
        rank=world.rank,
        world_size=world.size,
        timeout=timeout,
        device_id=world.device if world.device.type == "cuda" else None,
    )
    failed = False
    try:
        if world.is_main:
            store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
            met.set("perennial/port", str(store.port))
        else:
            store = dist.TCPStore(host, int(met.get("perennial/port")), is_master=False, timeout=timeout)
        yield store
        try:
            dist.barrier()  # the store ends with rank 0, so nobody may still need it
        except RuntimeError:
            exit_because("another process ended", world, -1)
    except BaseException as error:
        failed = True
        # The frames of the error hold a wrapped model, and that the group: freed after it, the process can hang.
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        # After an error NCCL would wait without end for exchanges that nobody finishes: `run_process` ends the process.
        if not (failed and world.device.type == "cuda"):
            dist.destroy_process_group()


def run_process(work: Callable[[], int]) -> int:
    """The exit status of a process's `work`. If that failed inside `process_group`, the process ends here, at once."""
    try:
        status = work()
    except Exception:
        if not dist.is_initialized():
            raise
        traceback.print_exc()
        status = 1
    if dist.is_initialized():
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    return status


def exit_because(why: str, world: World, rank: int) -> NoReturn:
    """End this process at once because process `rank` (-1: it is not known which) has ended, or is silent.

    The first one on this machine to leave tells the launcher which: the order in which processes end does not.
    """
    os.write(2, f"{why}; process {world.rank} leaves too\n".encode())
    if note := os.environ.get(ENDED_NOTE):
        with suppress(OSError), Path(note).open("x") as file:
            file.write(str(rank))
    os._exit(PEER_DIED)


def is_peer_failure(error: RuntimeError) -> bool:
    """Whether an exchange failed because of another process: it ended, or said nothing in time."""
    return (
        isinstance(error, dist.DistError) or re.search(r"gloo|NCCL|[Cc]onnection|[Tt]imed out", str(error)) is not None
    )


def make_deterministic(threads: int, deterministic: bool) -> None:
    """Pin what decides bits: compute threads, and with `deterministic` one algorithm for everything, or an error.

    The number of threads decides how a sum is cut [measured: 1 and 2 threads differ], and torchrun would set it only
    for more than one process, so it is set here, for every launcher alike.
    """
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    torch.backends.cudnn.benchmark = not deterministic  # which tries all algorithms and takes the fastest
    torch.backends.cudnn.deterministic = deterministic
    torch.use_deterministic_algorithms(deterministic)
    # Else torch would fill every new tensor before it is written to; none is read before. Its stubs do not know it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def nondeterministic_operator(error: RuntimeError) -> str:
    """The operator that torch refused because it has no deterministic version; nothing for any other error."""
    found = re.match(r"(\S+) does not have a deterministic implementation", str(error))
    return found[1] if found else ""


def all_reduce_sum(values: Tensor) -> Tensor:
    """Sum `values` over all processes, in place; every process gets the same bytes."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def all_reduce_max(value: Tensor) -> Tensor:
    """The largest that a process holds, in place, for every process."""
    if dist.is_initialized():
        dist.all_reduce(value, dist.ReduceOp.MAX)
    return value


def gather_in_order(parts: list[Tensor], indices: list[int], count: int) -> list[Tensor]:
    """Put the parts that the processes hold into one list by their index in [0, count); every process gets all of it.

    Bytes are moved, nothing is added, so the result is the same for every number of processes.
    """
    mine = dict(zip(indices, [part.to("cpu") for part in parts], strict=True))
    if dist.is_initialized():
        everyone: list[dict[int, Tensor]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(everyone, mine)
        mine = {index: part for held in everyone for index, part in held.items()}
    return [mine[index] for index in range(count)]


def broadcast_buffers(model: nn.Module) -> None:
    """Give every process rank 0's buffers (BatchNorm statistics), as before any evaluation and in what is saved."""
    if dist.is_initialized():
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def broadcast_object(value: T) -> T:
    """What rank 0 holds, for every process: plain values and tensors on the CPU."""
    if dist.is_initialized():
        box = [value]
        dist.broadcast_object_list(box, src=0)
        value = box[0]
    return value


def all_gather_object(value: T) -> list[T]:
    """What every process holds, by rank: plain values."""
    if not dist.is_initialized():
        return [value]
    held = [value] * dist.get_world_size()
    dist.all_gather_object(held, value)
    return held


def all_to_all(sent: Tensor, sent_counts: list[int], received_counts: list[int]) -> Callable[[], Tensor]:
    """Start to give every process its stretch of the vector `sent`; returns what waits for the stretches from all.

    The counts are lengths by rank. Nothing is added.
    """
    received = sent.new_empty(sum(received_counts))
    work = dist.all_to_all_single(received, sent, received_counts, sent_counts, async_op=True)
    return lambda: _wait(work, received)


def all_gather(mine: Tensor) -> Callable[[], Tensor]:
    """Start to put the vectors of all processes, of one length, together by rank; returns what waits for the whole."""
    whole = mine.new_empty(len(mine) * dist.get_world_size())
    work = dist.all_gather_into_tensor(whole, mine, async_op=True)
    return lambda: _wait(work, whole)


def _wait(work: dist.Work, result: Tensor) -> Tensor:
    work.wait()
    return result


def broadcast_flag(wish: bool, device: torch.device) -> bool:
    """What rank 0 wishes, for every process. Waits for the device."""
    if dist.is_initialized():
        told = torch.tensor(int(wish), device=device)
        dist.broadcast(told, src=0)
        wish = bool(told)
    return wish


def barrier() -> None:
    """Wait for all processes."""
    if dist.is_initialized():
        dist.barrier()
