"""One dict, saved and loaded whole: what is under the name is complete or is not there."""

from pathlib import Path
from typing import Any

import torch

from pipeline.files import atomic_file


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `state` beside `path`, make sure it is on the disk, then give it the name."""
    with atomic_file(path) as temporary:
        torch.save(state, temporary)


def load(path: Path) -> dict[str, Any]:
    """The dict saved at `path`, its tensors on the CPU. Loads tensors and plain values only, never code."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state
