"""A process group of a GPU, on the CPU: gloo exchanges, and whoever destroys the group is written down.

    python -m tests.ranks.quiescent FOLDER fail|end

NCCL waits in `destroy_process_group` until all exchanges have ended, which after an error is never. With `fail`, rank 1
fails while rank 0 waits for it. Each rank that destroys the group writes FOLDER/destroyed-<rank>.
"""

import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from pipeline.base.errors import Fault, UserError, exit_status
from pipeline.learning.world import World
from pipeline.running import group, rendezvous

initialize, destroy = dist.init_process_group, dist.destroy_process_group


def by_gloo(backend: str, **arguments: Any) -> None:
    """What `init_process_group` does, with gloo in place of NCCL."""
    assert backend == "nccl", backend
    initialize("gloo", **{**arguments, "device_id": None})


def work(folder: Path, fails: bool) -> int:
    """Fail on rank 1, or meet at the end."""
    cpu = rendezvous.world_of(os.environ, "cpu")
    world = World(cpu.rank, cpu.local_rank, cpu.size, torch.device("cuda", cpu.local_rank))

    def note() -> None:
        (folder / f"destroyed-{world.rank}").touch()
        destroy()

    with (
        patch.object(dist, "init_process_group", by_gloo),
        patch.object(dist, "destroy_process_group", note),
        patch.object(torch.cuda, "set_device"),
    ):
        meet(world, fails)
    return 0


def meet(world: World, fails: bool) -> None:
    with group.join(world, 300):
        if fails and world.rank == 1:
            raise UserError(Fault("rank 1", "its disk is full", "failed", remedy="make room"))
        dist.barrier()


if __name__ == "__main__":
    arguments = Path(sys.argv[1]), sys.argv[2] == "fail"
    sys.exit(group.run_process(lambda: exit_status("quiescent", lambda: work(*arguments))))
