"""The place of this process among the processes of a run."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class World:
    """The rank of this process, its rank on this machine, the world size, and its device."""

    rank: int
    local_rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process logs and writes files: rank 0 does."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """Which of `count` things, such as microbatches, this process works on."""
        return share(count, self.rank, self.size)


def share(count: int, rank: int, size: int) -> range:
    """Which of `count` things process `rank` of `size` works on: consecutive ones. Shares differ by one at most."""
    return range(count * rank // size, count * (rank + 1) // size)
