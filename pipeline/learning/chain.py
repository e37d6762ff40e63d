"""The SHA-256 of the whole state of a training, which metrics/history.csv has for the end of each epoch.

The state is what decides the rest of the training: the content of a checkpoint, without the hardware. Rows of the
history are part of it, and they have the SHA-256 of earlier epochs. So each value also covers the epochs before it.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from pipeline.base import linux
from pipeline.learning.loop import Learner
from pipeline.learning.state import STATE, Progress

PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


def whole_state(learner: Learner, progress: Progress) -> dict[str, Any]:
    """Everything that decides the rest of a training, at the end of an epoch."""
    *rows, last = progress.history
    last = {name: value for name, value in last.items() if name != STATE}
    return {**learner.state_dict(), "progress": {**vars(progress), "history": [*rows, last]}}


def sha256(state: Mapping[str, Any]) -> str:
    """The SHA-256 (hexadecimal) of nested tables and lists of tensors and plain values.

    It is that of lines `path value`, sorted by path. The value of a tensor is its type, its shape, and the SHA-256 of
    its bytes in the order of its indices. So neither the device nor the memory format changes it.
    """
    leaves = sorted(_leaves(state), key=lambda leaf: leaf[0])
    with ThreadPoolExecutor(linux.usable_cores()) as threads:  # hashlib releases Python's lock
        texts = threads.map(_text, (value for _, value in leaves))
        lines = [f"{path} {text}\n" for (path, _), text in zip(leaves, texts, strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class Digest:
    """The hash of the state at the end of each `every`-th epoch, which goes into the epoch's row of the history.

    Rank 0 alone has it in its history (`every` is 0 for the others). Its checkpoint is that of all processes.
    On a GPU a thread makes it while the next epoch is trained: the state is copied on the GPU, which takes less than a
    millisecond, and the copy goes to the host on a stream of its own. On the CPU it is made at once, because the thread
    would take a core from the training.
    """

    def __init__(self, every: int, check: Callable[[int, str], None]) -> None:
        """`every` 0: no epoch is hashed. `check` gets the number of an epoch and its hash, in the thread of `join`."""
        self._every, self._check, self._pool = every, check, ThreadPoolExecutor(1, "state")
        self._row: dict[str, Any] = {}
        self._made: Future[str] | None = None

    def begin(self, learner: Learner, progress: Progress, device: torch.device) -> None:
        """Begin to hash the state at the end of an epoch, if its turn has come. Call `join` before hashes are read."""
        self.join()
        if self._every == 0 or len(progress.history) % self._every:
            return
        state, self._row = whole_state(learner, progress), progress.history[-1]
        if device.type == "cuda":
            kept = _with_tensors(state, Tensor.clone)
            ready = torch.cuda.Event()
            ready.record()
            self._made = self._pool.submit(_sha256_beside, kept, ready, device)
        else:
            self._write(sha256(state))

    def join(self) -> None:
        """Wait for the hash, write it into its row, and check it. Without a hash nothing happens."""
        if self._made is not None:
            made, self._made = self._made, None
            self._write(made.result())

    def _write(self, digest: str) -> None:
        self._row[STATE] = digest
        self._check(self._row["epoch"], digest)


def _with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Nested tables and lists with each tensor changed."""
    if isinstance(value, Mapping):
        return {key: _with_tensors(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_tensors(each, change) for each in value]
    return change(value.detach()) if isinstance(value, Tensor) else value


def _sha256_beside(state: Mapping[str, Any], ready: torch.cuda.Event, device: torch.device) -> str:
    """The hash of a state on a GPU. Waits for `ready`, and for nothing that the GPU is given later."""
    stream = torch.cuda.Stream(device)
    stream.wait_event(ready)
    with torch.cuda.stream(stream):
        on_host = _with_tensors(state, Tensor.cpu)
    return sha256(on_host)


def tensors(state: Mapping[str, Any]) -> list[Tensor]:
    """The tensors in nested tables and lists."""
    return [value for _, value in _leaves(state) if isinstance(value, Tensor)]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of everything in nested tables and lists."""
    if isinstance(value, Mapping):
        for key in value:
            yield from _leaves(value[key], f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _leaves(each, f"{path}/{number}")
    else:
        yield path, value


def _text(value: Any) -> str:
    """A plain value, a tensor by its hash, anything else by its type: its text may have an address."""
    if not isinstance(value, Tensor):
        return repr(value) if isinstance(value, PLAIN) else type(value).__name__
    content = value.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{value.dtype} {list(value.shape)} {hashlib.sha256(content.data).hexdigest()}"
