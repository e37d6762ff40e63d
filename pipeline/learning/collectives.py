"""The exchanges of tensors and values between the processes of a training.

With one process they return at once, and do not wait for the device.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.config.params import Backend

T = TypeVar("T")


def backend_for(device: torch.device, choice: Backend) -> Backend:
    """The backend that processes on such devices exchange tensors with, for a value of train.backend."""
    if choice != "auto":
        return choice
    return "nccl" if device.type == "cuda" else "gloo"


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


def barrier() -> None:
    """Wait until every process has called this."""
    if has_peers():
        dist.barrier()
