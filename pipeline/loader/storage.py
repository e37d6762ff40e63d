"""Where the packed images are kept during training and evaluation: run.residency. It changes no byte of any result.

    device    in the memory of the device: a batch is cut from where they lie
    host      in this process's main memory, pinned for a GPU
    disk      mapped from the packed file: the system keeps in memory what fits, and is told a step ahead what is next
    auto      the first of these that fits; on the CPU, whose memory is the system's, disk

Batches are planned, and the system told, a step ahead. For a GPU, host and disk hand over a batch's images in pinned
memory, and `ahead` lets a thread collect them while the batch before is at work: so nobody waits for a copy. What was
chosen is printed.
"""

import mmap
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.base.errors import UserError

Residency = Literal["auto", "device", "host", "disk"]
MOST = 0.5  # of the memory that is free: the share that images may take of it, all processes of this machine together
T = TypeVar("T")


@dataclass(frozen=True)
class ImageStore:
    """Packed images uint8 [N, S, S, 3] where they reside, and the device that is to see them."""

    whole: Tensor
    device: torch.device
    expect: Callable[[NDArray[np.int64]], None] = lambda rows: None  # is told the rows [n] that are needed next

    def collect(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """What is to be sent to see these rows [n]: images, and the row numbers int64 [n] in them.

        All images, where those need not be sent: they lie on the device, or the device is the CPU.
        """
        self.expect(rows)
        chosen = torch.from_numpy(rows)
        if self.device.type == "cpu":
            return self.whole, chosen
        if self.whole.is_cuda:
            return self.whole, chosen.pin_memory()
        images = torch.empty(len(rows), *self.whole.shape[1:], dtype=torch.uint8, pin_memory=True)
        torch.index_select(self.whole, 0, chosen, out=images)
        return images, torch.arange(len(rows)).pin_memory()

    def send(self, collected: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """What was collected, on the device; the copy is under way when this returns."""
        images, rows = (tensor.to(self.device, non_blocking=True) for tensor in collected)
        return images, rows


def reside(images: NDArray[np.uint8], where: Residency, device: torch.device, processes: int) -> tuple[ImageStore, str]:
    """Put packed images, mapped from disk, where `where` says. `processes` of this machine do so at a time.

    Also returns where that is, in words. Raises UserError if they do not fit there.
    """
    host = psutil.virtual_memory().available * MOST / processes
    fits = {"device": torch.cuda.mem_get_info(device)[0] * MOST if device.type == "cuda" else host, "host": host}
    chosen: str = where
    if where == "auto":
        chosen = "disk"
        if device.type == "cuda":
            chosen = next((memory for memory in ("device", "host") if images.nbytes <= fits[memory]), "disk")
    elif where != "disk" and images.nbytes > fits[where]:
        raise UserError(
            f"run.residency: {where!r} needs {images.nbytes / 1e9:.1f} GB, but {fits[where] / 1e9:.1f} GB fit there "
            f"({MOST:.0%} of what is free, shared by the processes); allowed here: auto, disk"
        )
    store = _mapped(images, device)
    if chosen == "device":
        store = ImageStore(store.whole.to(device, copy=True), device)
    elif chosen == "host":
        store = ImageStore(store.whole.pin_memory() if device.type == "cuda" else store.whole.clone(), device)
    return store, f"{chosen} ({images.nbytes / 1e6:,.0f} MB, run.residency: {where})"


def _mapped(images: NDArray[np.uint8], device: torch.device) -> ImageStore:
    """The images, which stay in their file."""
    assert isinstance(images, np.memmap)
    with Path(str(images.filename)).open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array, length = np.frombuffer(mapped, np.uint8, offset=images.offset).reshape(images.shape), images[0].nbytes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has no read-only tensors, and says so; nobody writes to this one
        whole = torch.from_numpy(array)

    if images.nbytes < psutil.virtual_memory().available:
        mapped.madvise(mmap.MADV_WILLNEED)  # all of it, in one go
        return ImageStore(whole, device)

    def expect(rows: NDArray[np.int64]) -> None:
        for start in (images.offset + rows * length).tolist():
            page = start // mmap.PAGESIZE * mmap.PAGESIZE
            mapped.madvise(mmap.MADV_WILLNEED, page, start + length - page)

    return ImageStore(whole, device, expect)


class AtOnce(Executor):
    """Does in this thread, and right away, what it is given."""

    def submit(self, work: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done


def ahead(items: Iterator[T], device: torch.device) -> Iterator[T]:
    """The same items, each made before the one ahead of it is done with.

    For a GPU by a thread, at the same time; for the CPU, whose cores are busy with the items themselves, at once.
    """
    end = object()
    with ThreadPoolExecutor(1, "ahead") if device.type == "cuda" else AtOnce() as maker:
        coming = maker.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = maker.submit(next, items, end)
            yield item  # type: ignore[misc]
