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

from pipeline.errors import Refusal

DeviceKind = Literal["cuda", "cpu"]
Store = dist.Store
T = TypeVar("T")
ENDED_NOTE = "PERENNIAL_ENDED_NOTE"  # the launcher's file in which a process that leaves says which one ended first
PEER_DIED = 76  # exit status of a process that leaves because another died


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

    def share(self, parts: int) -> range:
        """Which parts of a global batch, cut into so many, this process works on."""
        return share(parts, self.rank, self.size)


def share(parts: int, rank: int, size: int) -> range:
    """Which of `parts` things `rank` of `size` processes works on: neighbours, one more or less than the others."""
    return range(parts * rank // size, parts * (rank + 1) // size)


# Who tells a process its place, and in which variables: rank, local rank, size. torchrun comes first, for it may itself
# run inside a Slurm job; a process of a job that srun did not start has no SLURM_STEP_NUM_TASKS.
PLACES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
)


def _place(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that tell this process its place; none, if no launcher started it."""
    return next((names for names in PLACES if all(name in environ for name in names)), ())


def from_env(environ: Mapping[str, str], device: DeviceKind) -> World:
    """The place that torchrun, `spawn` (which sets the same variables) or Slurm's srun gave; else a single process."""
    rank, local, size = (int(environ[name]) for name in _place(environ)) if _place(environ) else (0, 0, 1)
    return World(rank, local, size, torch.device(device, local) if device == "cuda" else torch.device("cpu"))


def meeting_point(environ: Mapping[str, str]) -> tuple[str, str]:
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


def meet(place: World, timeout_seconds: int) -> Store:
    """A store of small values that all processes see: through it they can talk before they can exchange tensors.

    Raises Refusal if not all come in time.
    """
    if not _place(os.environ):
        return dist.HashStore()
    _, method = meeting_point(os.environ)
    timeout = timedelta(seconds=timeout_seconds)
    try:
        met: Store = next(iter(dist.rendezvous(method, place.rank, place.size, timeout=timeout)))[0]
        return met
    except dist.DistError as error:
        raise Refusal(
            f"run.timeout_seconds: {timeout_seconds}: process {place.rank} of {place.size} did not meet the others in "
            f"this time ({first_line(error)}); see what they say"
        ) from None


def told(store: Store, place: World, name: str, text: str) -> list[str]:
    """What every process says under a name, by rank. Raises Refusal naming one that says nothing in time."""
    store.set(f"{name}/{place.rank}", text)
    said = [_heard(store, place, f"{name}/{rank}", rank) for rank in range(place.size)]
    store.set(f"{name}/read/{place.rank}", "")
    if place.first:  # it may keep the store, so it is the last to leave
        for rank in range(place.size):
            _heard(store, place, f"{name}/read/{rank}", rank)
    return said


def _heard(store: Store, place: World, key: str, rank: int) -> str:
    """What process `rank` has said. Raises Refusal if it says nothing in time."""
    try:
        return str(store.get(key).decode())
    except dist.DistError as error:
        raise Refusal(
            f"process {rank} of {place.size} said nothing within run.timeout_seconds, or its store is gone "
            f"({first_line(error)}); see what it says"
        ) from None


def first_line(error: Exception) -> str:
    """What torch says of an error, without the frames of C++ that follow it."""
    return str(error).partition("\n")[0]


@contextmanager
def joined(world: World, timeout_seconds: int) -> Iterator[Store]:
    """`exchanging`, where the processes have not met yet."""
    with exchanging(world, timeout_seconds, meet(world, timeout_seconds)) as store:
        yield store


@contextmanager
def exchanging(world: World, timeout_seconds: int, met: Store) -> Iterator[Store]:
    """Inside the block the processes can exchange tensors; no wait on a peer lasts longer than the timeout.

    Yields a store of small values that all of them see. Rank 0 keeps it, so it outlives a launcher that was killed.
    """
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    if not _place(os.environ):
        yield met
        return
    timeout = timedelta(seconds=timeout_seconds)
    host, _ = meeting_point(os.environ)
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
        if world.first:
            store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
            met.set("perennial/port", str(store.port))
        else:
            store = dist.TCPStore(host, int(met.get("perennial/port")), is_master=False, timeout=timeout)
        yield store
        try:
            dist.barrier()  # the store ends with rank 0, so nobody may still need it
        except RuntimeError:
            leave("another process ended", world, -1)
    except BaseException as error:
        failed = True
        # The frames of the error hold a wrapped model, and that the group: freed after it, the process can hang.
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        # After an error NCCL's would wait for exchanges that never end, in silence: `ended` ends the process instead.
        if not (failed and world.device.type == "cuda"):
            dist.destroy_process_group()


def ended(work: Callable[[], int]) -> int:
    """The exit status of a process's `work`. If that failed inside `exchanging`, the process ends here, at once."""
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


def leave(why: str, world: World, rank: int) -> NoReturn:
    """End this process at once because process `rank` (-1: it is not known which) has ended, or is silent.

    The first one on this machine to leave tells the launcher which: the order in which processes end does not.
    """
    os.write(2, f"{why}; process {world.rank} leaves too\n".encode())
    if note := os.environ.get(ENDED_NOTE):
        with suppress(OSError), Path(note).open("x") as file:
            file.write(str(rank))
    os._exit(PEER_DIED)


def of_peers(error: RuntimeError) -> bool:
    """Whether an exchange failed because of another process: it ended, or said nothing in time."""
    return (
        isinstance(error, dist.DistError) or re.search(r"gloo|NCCL|[Cc]onnection|[Tt]imed out", str(error)) is not None
    )


def fix_arithmetic(threads: int, deterministic: bool) -> None:
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


def undetermined(error: RuntimeError) -> str:
    """The operator that torch refused because it has no deterministic version; nothing for any other error."""
    found = re.match(r"(\S+) does not have a deterministic implementation", str(error))
    return found[1] if found else ""


def total(values: Tensor) -> Tensor:
    """Sum `values` over all processes, in place; every process gets the same bytes."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def most(value: Tensor) -> Tensor:
    """The largest that a process holds, in place, for every process."""
    if dist.is_initialized():
        dist.all_reduce(value, dist.ReduceOp.MAX)
    return value


def collected(parts: list[Tensor], indices: list[int], count: int) -> list[Tensor]:
    """Put the parts that the processes hold into one list by their index in [0, count); every process gets all of it.

    Bytes are moved, nothing is added, so the result is the same for every number of processes.
    """
    mine = dict(zip(indices, [part.to("cpu") for part in parts], strict=True))
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


def of_first(value: T) -> T:
    """What rank 0 holds, for every process: plain values and tensors on the CPU."""
    if dist.is_initialized():
        box = [value]
        dist.broadcast_object_list(box, src=0)
        value = box[0]
    return value


def of_all(value: T) -> list[T]:
    """What every process holds, by rank: plain values."""
    if not dist.is_initialized():
        return [value]
    held = [value] * dist.get_world_size()
    dist.all_gather_object(held, value)
    return held


def swap(sent: Tensor, sent_counts: list[int], received_counts: list[int]) -> Callable[[], Tensor]:
    """Start to give every process its stretch of the vector `sent`; returns what waits for the stretches from all.

    The counts are lengths by rank. Nothing is added.
    """
    received = sent.new_empty(sum(received_counts))
    work = dist.all_to_all_single(received, sent, received_counts, sent_counts, async_op=True)
    return lambda: _done(work, received)


def gathered(mine: Tensor) -> Callable[[], Tensor]:
    """Start to put the vectors of all processes, of one length, together by rank; returns what waits for the whole."""
    whole = mine.new_empty(len(mine) * dist.get_world_size())
    work = dist.all_gather_into_tensor(whole, mine, async_op=True)
    return lambda: _done(work, whole)


def _done(work: dist.Work, result: Tensor) -> Tensor:
    work.wait()
    return result


def first_says(wish: bool, device: torch.device) -> bool:
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
