"""The process group, its collectives, and the exit of a process.

With one process the collectives return at once, and do not wait for the device.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.config.params import Backend
from pipeline.engine import rendezvous
from pipeline.engine.exits import ENDED_NOTE, FAILED, PEER_DIED
from pipeline.engine.rendezvous import Store
from pipeline.engine.world import World, has_launcher

T = TypeVar("T")


def backend_for(device: torch.device, choice: Backend) -> Backend:
    """The backend that processes on such devices exchange tensors with, for a value of train.backend."""
    if choice != "auto":
        return choice
    return "nccl" if device.type == "cuda" else "gloo"


@contextmanager
def join(world: World, timeout_seconds: int, backend: Backend = "auto") -> Iterator[Store]:
    """`process_group` with a store of its own: connects the processes first."""
    with process_group(world, backend, timeout_seconds, rendezvous.connect_store(world, timeout_seconds)) as store:
        yield store


@contextmanager
def process_group(world: World, backend: Backend, timeout_seconds: int, launcher_store: Store) -> Iterator[Store]:
    """In the block the processes can exchange tensors. No wait for another process lasts longer than the timeout.

    Yields a store of small values that all processes see. Rank 0 hosts it, so it survives the end of the launcher.
    """
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    if not has_launcher(os.environ):
        yield launcher_store
        return
    timeout, backend = timedelta(seconds=timeout_seconds), backend_for(world.device, backend)
    host, _ = rendezvous.address(os.environ)
    if backend == "gloo" and (interface := rendezvous.interface_to(host)):
        os.environ.setdefault(rendezvous.INTERFACE, interface)
    rendezvous.check_interface(os.environ)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", launcher_store),
        rank=world.rank,
        world_size=world.size,
        timeout=timeout,
        device_id=world.device if backend == "nccl" else None,
    )
    has_failed = False
    try:
        if world.is_main:
            store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
            launcher_store.set("perennial/port", str(store.port))
        else:
            port = int(launcher_store.get("perennial/port"))
            store = dist.TCPStore(host, port, is_master=False, timeout=timeout)
        yield store
        try:
            dist.barrier()  # the store ends with rank 0, so no process may still need it
        except RuntimeError:
            exit_because("another process ended", world, -1)
    except BaseException as error:
        has_failed = True
        # The error's frames reference the wrapped model, which references the group. The model must be freed first:
        # otherwise the end of the process can hang.
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        # After an error, NCCL would wait for unfinished exchanges without end: `run_process` ends the process instead.
        if not (has_failed and backend == "nccl"):
            dist.destroy_process_group()


def run_process(work: Callable[[], int]) -> int:
    """The exit status of `work`. If `work` failed inside `process_group`, the process ends here at once.

    A failure leaves a file for the launcher, which may not see this process's end: see launchers.slurm.
    """
    status = 1
    try:
        status = work()
    except Exception:
        if not dist.is_initialized():
            raise
        traceback.print_exc()
    finally:
        if status and (note := os.environ.get(ENDED_NOTE)):
            with suppress(OSError):
                Path(note + FAILED).touch()
    if dist.is_initialized():
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    return status


def exit_because(reason: str, world: World, rank: int) -> NoReturn:
    """End this process at once because process `rank` (-1: unknown) has ended or is silent.

    The first process on this machine that leaves tells the launcher the rank. The order of exits does not show it.
    """
    os.write(2, f"{reason}; process {world.rank} leaves too\n".encode())
    if note := os.environ.get(ENDED_NOTE):
        with suppress(OSError), Path(note).open("x") as file:
            file.write(str(rank))
    os._exit(PEER_DIED)


def is_peer_failure(error: RuntimeError) -> bool:
    """Whether an exchange failed because another process ended or was silent for too long."""
    return (
        isinstance(error, dist.DistError) or re.search(r"gloo|NCCL|[Cc]onnection|[Tt]imed out", str(error)) is not None
    )


def has_peers() -> bool:
    """Whether there are other processes to exchange with."""
    return dist.is_initialized() and dist.get_world_size() > 1


def all_reduce_sum(values: Tensor) -> Tensor:
    """The sum of `values` over all processes, in place. Every process gets the same bytes."""
    if has_peers():
        dist.all_reduce(values)
    return values


def all_reduce_max(value: Tensor) -> Tensor:
    """The largest `value` of all processes, in place."""
    if has_peers():
        dist.all_reduce(value, dist.ReduceOp.MAX)
    return value


def gather_in_order(tensors: list[Tensor], indices: list[int], count: int) -> list[Tensor]:
    """The tensors [n, …] of all processes as one list, by their index in [0, count), on every process' CPU.

    Nothing is added, so the bytes are the same for every number of processes.
    """
    # One copy from the device for all tensors.
    on_host = torch.cat(tensors).to("cpu").split([len(tensor) for tensor in tensors]) if tensors else ()
    # Cloned: pickle would write the memory of all tensors for each of them.
    by_index = {index: tensor.clone() for index, tensor in zip(indices, on_host, strict=True)}
    for tensors_of_process in all_gather_object(by_index):
        by_index |= tensors_of_process
    return [by_index[index] for index in range(count)]


def broadcast_buffers(model: nn.Module) -> None:
    """Give every process rank 0's buffers (BatchNorm statistics), as before a validation: one message for each type."""
    if not has_peers():
        return
    buffers = list(model.buffers())
    for dtype in sorted({buffer.dtype for buffer in buffers}, key=str):
        of_type = [buffer for buffer in buffers if buffer.dtype == dtype]
        message = torch.cat([buffer.flatten() for buffer in of_type])
        dist.broadcast(message, src=0)
        for buffer, values in zip(of_type, message.split([buffer.numel() for buffer in of_type]), strict=True):
            buffer.copy_(values.view_as(buffer))


def broadcast_object(value: T) -> T:
    """The value of rank 0, on every process. It holds plain values and tensors on the CPU."""
    if not has_peers():
        return value
    objects = [value]
    dist.broadcast_object_list(objects, src=0)
    return objects[0]


def all_gather_object(value: T) -> list[T]:
    """The values of all processes, by rank. They hold plain values and tensors on the CPU."""
    if not has_peers():
        return [value]
    values = [value] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def all_to_all(vector: Tensor, send_counts: list[int], receive_counts: list[int]) -> Callable[[], Tensor]:
    """Start to send every process its slice of `vector`. Returns a function that waits for the result.

    The counts are the lengths of the slices, by rank. The result has the slices of all processes, by rank.
    """
    result = vector.new_empty(sum(receive_counts))
    work = dist.all_to_all_single(result, vector, receive_counts, send_counts, async_op=True)
    return lambda: _wait(work, result)


def all_gather(vector: Tensor) -> Callable[[], Tensor]:
    """Start to concatenate the vectors of all processes, by rank. Returns a function that waits for the result.

    All vectors have the same length.
    """
    result = vector.new_empty(len(vector) * dist.get_world_size())
    work = dist.all_gather_into_tensor(result, vector, async_op=True)
    return lambda: _wait(work, result)


def _wait(work: dist.Work, result: Tensor) -> Tensor:
    work.wait()
    return result


def broadcast_flag(flag: bool, device: torch.device) -> bool:
    """The flag of rank 0, on every process. Waits for the device if there are other processes."""
    if not has_peers():
        return flag
    value = torch.tensor(int(flag), device=device)
    dist.broadcast(value, src=0)
    return bool(value)


def barrier() -> None:
    """Wait until every process has called this."""
    if has_peers():
        dist.barrier()
