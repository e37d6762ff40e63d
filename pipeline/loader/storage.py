"""The memory that holds the packed images during training and evaluation: run.residency. It changes no result.

    device    in the memory of the device: batches are cut from there
    host      in the main memory of this process, pinned for a GPU
    disk      mapped from the packed files: the system caches what fits, and learns one step ahead which images are next
    stream    in DVC's remote: each batch reads its images there (stream.py)
    auto      on a GPU device, host or disk, the first that fits; on the CPU disk, because its memory is the system's

With host and disk a GPU gets the images of a batch in pinned memory. `threads.prefetch` collects them in a thread while
the batch before is computed, and the GPU copies them in a stream of their own, so nothing waits for a copy. The choice
is printed.
"""

import mmap
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.base import linux
from pipeline.base.errors import Fault, UserError
from pipeline.config.params import STREAM, Run
from pipeline.dataset.normalization import Normalization
from pipeline.dataset.packed import Packed
from pipeline.loader import remote, stream

Collected = Callable[[], tuple[Tensor, Tensor]]  # returns images, and the numbers in them of those that a batch cuts
MAX_SHARE = 0.5  # of the free memory, that the images of all processes of this machine may take


@dataclass(frozen=True)
class ImageStore:
    """Packed images uint8 [N, S, S, 3] in some memory, and the device that needs them."""

    images: Tensor
    device: torch.device
    advise: Callable[[NDArray[np.int64]], None] = lambda rows: None  # tells the system which rows [n] are read next

    @property
    def ahead(self) -> int:
        """How many batches a thread collects ahead; 0: none, because a CPU is busy with the steps themselves."""
        return 1 if self.device.type == "cuda" else 0

    def hashes(self, data: Packed) -> NDArray[np.uint8]:
        """The SHA-256 of the pixels of each image, uint8 [N, 32]."""
        return data.hashes

    def collect(self, rows: NDArray[np.int64]) -> Collected:
        """Images and row numbers int64 [n] to copy to the device, so that it has the given rows [n].

        If the images are already there, or the device is the CPU: all images, and the rows as given.
        """
        self.advise(rows)
        numbers = torch.from_numpy(rows)
        if self.device.type == "cpu":
            return lambda: (self.images, numbers)
        if self.images.is_cuda:
            pinned = numbers.pin_memory()
            return lambda: (self.images, pinned)
        batch = torch.empty(len(rows), *self.images.shape[1:], dtype=torch.uint8, pin_memory=True)
        torch.index_select(self.images, 0, numbers, out=batch)
        positions = torch.arange(len(rows)).pin_memory()
        return lambda: (batch, positions)

    def send(self, collected: Collected) -> tuple[Tensor, Tensor]:
        """The images and row numbers that `collect` returned, on the device.

        A GPU copies in a stream of its own, while it computes the step before. The current stream waits for the copy;
        the host does not.
        """
        sources = collected()
        if self.device.type != "cuda":
            return sources
        computing, copying = torch.cuda.current_stream(self.device), _copy_stream(self.device)
        with torch.cuda.stream(copying):
            images, rows = (tensor.to(self.device, non_blocking=True) for tensor in sources)
        computing.wait_stream(copying)
        for tensor, source in zip((images, rows), sources, strict=True):
            if tensor is not source:
                tensor.record_stream(computing)  # its memory serves another copy only after the step has used it
        return images, rows


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream in which batches are copied to a GPU."""
    return torch.cuda.Stream(device)


@dataclass(frozen=True)
class StreamedStore(ImageStore):
    """Images in DVC's remote. `images` has none of them: uint8 [0, S, S, 3]."""

    reader: stream.Reader = field(kw_only=True)

    @property
    def ahead(self) -> int:
        """So many batches are read at the same time, because an answer of the remote takes longer than a step."""
        return stream.BATCHES

    def hashes(self, data: Packed) -> NDArray[np.uint8]:
        return self.reader.hashes  # this machine has no images.sha256

    def collect(self, rows: NDArray[np.int64]) -> Collected:
        """The images of these rows [n], in order. They are read in a thread; an error is raised where they are used."""
        positions = torch.arange(len(rows), pin_memory=self.device.type == "cuda")

        def read() -> tuple[Tensor, Tensor]:
            batch = torch.empty(
                len(rows), *self.images.shape[1:], dtype=torch.uint8, pin_memory=self.device.type == "cuda"
            )
            self.reader.read(rows, batch.numpy())
            return batch, positions

        return self.reader.pool.submit(read).result


@dataclass(frozen=True)
class Dataset:
    """The packed images where run.residency keeps them, with their labels, sizes and splits, for a model."""

    packed: Packed
    images: ImageStore
    normalization: Normalization  # of the model


def open_images(data: Packed, run: Run, device: torch.device) -> tuple[ImageStore, str]:
    """The packed images in the memory that run.residency names, and a text for the user with its name.

    All processes of this machine do this at the same time. Raises UserError if the images do not fit.
    """
    processes, residency = run.processes // run.nodes, run.residency
    if residency == STREAM:
        reader = stream.open_reader(data, remote.locate(data.folder.as_posix()), run.stream_cache_gb)
        none = torch.empty(0, *data.content.shape[1:], dtype=torch.uint8)
        return StreamedStore(none, device, reader=reader), f"{reader.place.shown} (run.residency: {residency})"
    images = data.images
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
    store = _mapped(images, device)
    if memory == "device":
        store = ImageStore(store.images.to(device, copy=True), device)
    elif memory == "host":
        store = ImageStore(store.images.pin_memory() if device.type == "cuda" else store.images.clone(), device)
    return store, f"{memory} ({images.nbytes / 1e6:,.0f} MB, run.residency: {residency})"


def _mapped(images: NDArray[np.uint8], device: torch.device) -> ImageStore:
    """The images as they are mapped from their files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the array is read-only; nothing writes to it
        tensor = torch.from_numpy(images)
    if images.nbytes < linux.available_memory():
        linux.advise(images, mmap.MADV_WILLNEED)  # all of it, in one go
        return ImageStore(tensor, device)
    # Else a row that is not there yet is read with its neighbours, up to megabytes of them, which no step needs.
    linux.advise(images, mmap.MADV_RANDOM)

    def advise(rows: NDArray[np.int64]) -> None:
        for row in rows.tolist():
            linux.advise(images[row], mmap.MADV_WILLNEED)

    return ImageStore(tensor, device, advise)
