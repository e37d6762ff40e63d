"""Nodes of a training: folders on this machine, whose agents meet over the network."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.helpers.ranks import free_port
from tests.helpers.trainings import small_world

TWO: dict[str, Any] = {
    "train__parallel": "ddp", "run__processes": 2, "train__epochs": 6, "run__epoch_checkpoint_seconds": 0,
}  # fmt: skip


TRAIN = [sys.executable, "-m", "pipeline", "train"]


def nodes(top: Path, **changes: Any) -> list[Path]:
    """Two folders, one for each node of a training."""
    lines = {**TWO, "run__nodes": 2, "run__rendezvous": f"127.0.0.1:{free_port()}", **changes}
    return [small_world(top / f"node{rank}", **lines, run__node_rank=rank) for rank in (0, 1)]


def start(folder: Path, command: list[str], **environment: str) -> subprocess.Popen[str]:
    """Start a command in a folder and a new process group. Its standard error is a pipe."""
    environ = {**os.environ, **environment}
    return subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.PIPE, start_new_session=True, text=True)
