"""The memory that holds the packed images during training and evaluation: run.residency. It changes no result.

    device    in the memory of the device: batches are cut from there
    host      in the main memory of this process, pinned for a GPU
    disk      mapped from the packed file: the system caches what fits, and learns one step ahead which images are next
    auto      on a GPU the first of these that fits; on the CPU disk, because its memory is the system's

With host and disk a GPU gets the images of a batch in pinned memory. `threads.prefetch` collects them in a thread while
the batch before is computed, and the GPU copies them in a stream of their own, so nothing waits for a copy. The choice
is printed.
"""

import mmap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.base import linux
from pipeline.base.errors import Fault, UserError
from pipeline.data.packed import Packed

Residency = Literal["auto", "device", "host", "disk"]
MAX_SHARE = 0.5  # of the free memory, that the images of all processes of this machine may take


@dataclass(frozen=True)
class ImageStore:
    """Packed images uint8 [N, S, S, 3] in some memory, and the device that needs them."""

    images: Tensor
    device: torch.device
    advise: Callable[[NDArray[np.int64]], None] = lambda rows: None  # tells the system which rows [n] are read next

    def collect(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Images and row numbers int64 [n] to copy to the device, so that it has the given rows [n].

        If the images are already there, or the device is the CPU: all images, and the rows as given.
        """
        self.advise(rows)
        numbers = torch.from_numpy(rows)
        if self.device.type == "cpu":
            return self.images, numbers
        if self.images.is_cuda:
            return self.images, numbers.pin_memory()
        batch = torch.empty(len(rows), *self.images.shape[1:], dtype=torch.uint8, pin_memory=True)
        torch.index_select(self.images, 0, numbers, out=batch)
        return batch, torch.arange(len(rows)).pin_memory()

    def send(self, collected: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The images and row numbers that `collect` returned, on the device.

        A GPU copies in a stream of its own, while it computes the step before. The current stream waits for the copy;
        the host does not.
        """
        if self.device.type != "cuda":
            return collected
        computing, copying = torch.cuda.current_stream(self.device), _copy_stream(self.device)
        with torch.cuda.stream(copying):
            images, rows = (tensor.to(self.device, non_blocking=True) for tensor in collected)
        computing.wait_stream(copying)
        for tensor, source in zip((images, rows), collected, strict=True):
            if tensor is not source:
                tensor.record_stream(computing)  # its memory serves another copy only after the step has used it
        return images, rows


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream in which batches are copied to a GPU."""
    return torch.cuda.Stream(device)


@dataclass(frozen=True)
class Dataset:
    """The packed images where run.residency keeps them, with their labels, sizes and splits."""

    packed: Packed
    images: ImageStore


def open_images(
    images: NDArray[np.uint8], residency: Residency, device: torch.device, processes: int
) -> tuple[ImageStore, str]:
    """The packed images in the memory that `residency` names, and a text for the user with its name.

    `processes` of this machine do this at the same time. Raises UserError if the images do not fit.
    """
    limits = {"host": linux.available_memory() * MAX_SHARE / processes}
    limits["device"] = torch.cuda.mem_get_info(device)[0] * MAX_SHARE if device.type == "cuda" else limits["host"]
    memory: str = residency
    if residency == "auto":
        memory = "disk"
        if device.type == "cuda" and images.nbytes <= limits["device"]:
            memory = "device"
        elif device.type == "cuda" and images.nbytes <= limits["host"]:
            memory = "host"
    elif residency != "disk" and images.nbytes > limits[residency]:
        fit = f"{limits[residency] / 1e9:.1f} GB fit there ({MAX_SHARE:.0%} of what is free, shared by the processes)"
        reason = f"it needs {images.nbytes / 1e9:.1f} GB, but {fit}"
        raise UserError(Fault("run.residency", residency, "machine", reason, "auto, disk"))
    store = _map(images, device)
    if memory == "device":
        store = ImageStore(store.images.to(device, copy=True), device)
    elif memory == "host":
        store = ImageStore(store.images.pin_memory() if device.type == "cuda" else store.images.clone(), device)
    return store, f"{memory} ({images.nbytes / 1e6:,.0f} MB, run.residency: {residency})"


def _map(images: NDArray[np.uint8], device: torch.device) -> ImageStore:
    """The images as a memory map of their file."""
    assert isinstance(images, np.memmap)
    with Path(str(images.filename)).open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array, length = np.frombuffer(mapping, np.uint8, offset=images.offset).reshape(images.shape), images[0].nbytes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the array is read-only; nothing writes to it
        tensor = torch.from_numpy(array)

    if images.nbytes < linux.available_memory():
        mapping.madvise(mmap.MADV_WILLNEED)  # all of it, in one go
        return ImageStore(tensor, device)
    # Else a row that is not there yet is read with its neighbours, up to megabytes of them, which no step needs.
    mapping.madvise(mmap.MADV_RANDOM)

    def advise(rows: NDArray[np.int64]) -> None:
        for start in (images.offset + rows * length).tolist():
            page = start // mmap.PAGESIZE * mmap.PAGESIZE
            mapping.madvise(mmap.MADV_WILLNEED, page, start + length - page)

    return ImageStore(tensor, device, advise)
