"""Which images are in the batch of a step: pure functions of (seed, step), the same for any number of processes.

No state is carried from step to step, so a resumed run needs no sampler state. Random numbers come from numpy's Philox,
a counter-based generator. Its key is (seed, purpose) and its counter starts at the step or epoch, so every step has its
own random stream.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value", bound=np.generic)

ORDER, CROP, DROPOUT, JITTER, ERASE, MIX = 1, 2, 3, 4, 5, 6  # purposes


@dataclass(frozen=True)
class Share:
    """The microbatches of every global batch that one process computes, one after another."""

    microbatches: range  # consecutive numbers
    total: int  # of the global batch; all microbatches have the same size

    def take(self, values: NDArray[Value]) -> NDArray[Value]:
        """The values of this share's images; the first axis of `values` is the global batch."""
        size = len(values) // self.total
        return values[self.microbatches.start * size : self.microbatches.stop * size]


def generator(seed: int, purpose: int, index: int) -> np.random.Generator:
    """A random generator with its own stream for every (seed, purpose, index)."""
    return np.random.Generator(np.random.Philox(key=[seed, purpose], counter=[0, 0, 0, index]))


def steps(epochs: int, rows: int, batch: int) -> int:
    """The number of steps of a training: only full batches, cut from the concatenated epochs."""
    return epochs * rows // batch


def epoch_end(epoch: int, rows: int, batch: int) -> int:
    """The number of steps after which epoch `epoch` (from 0) is over: its last full batch."""
    return steps(epoch + 1, rows, batch)


def epoch_of_step(step: int, rows: int, batch: int) -> int:
    """The epoch (from 0) that a step (from 0) belongs to: the number of epochs that are over before it."""
    return -(-(step + 1) * batch // rows) - 1


@lru_cache(maxsize=4)
def order(seed: int, epoch: int, rows: int) -> NDArray[np.int64]:
    """The permutation of `rows` row numbers that epoch `epoch` goes through, shape [rows]; read-only."""
    permutation = generator(seed, ORDER, epoch).permutation(rows)
    permutation.flags.writeable = False
    return permutation


def batch_rows(seed: int, step: int, batch: int, rows: int) -> NDArray[np.int64]:
    """The row numbers of the global batch of `step`, shape [batch], each in [0, rows)."""
    position, pieces = step * batch, []
    while position < (step + 1) * batch:
        epoch, start = divmod(position, rows)
        piece = order(seed, epoch, rows)[start : start + (step + 1) * batch - position]
        pieces.append(piece)
        position += len(piece)
    return np.concatenate(pieces)


def dropout_seed(seed: int, step: int) -> int:
    """The seed of dropout in `step`; each microbatch of the global batch adds its number."""
    return int(generator(seed, DROPOUT, step).integers(2**62))
