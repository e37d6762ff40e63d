"""Call every choice that needs Apex, as if Apex were not installed. Print the module that each one misses.

python -m tests.ranks.without_apex
"""

import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

sys.modules["apex"] = None  # type: ignore[assignment]  # its import raises ModuleNotFoundError

from pipeline.learning.choices import OPTIMIZERS, PARALLELS, PRECISIONS, SYNC_BNS  # noqa: E402
from pipeline.learning.world import World  # noqa: E402

ALONE = World(0, 0, 1, torch.device("cpu"))
CHOICES: tuple[Callable[[], object], ...] = (
    *(partial(PRECISIONS[level], "cpu") for level in ("O0", "O1", "O2", "O3")),
    lambda: PARALLELS["apex_ddp"](nn.Identity(), ALONE, True, 1),
    lambda: SYNC_BNS["apex"](nn.Identity()),
    lambda: OPTIMIZERS["fused_sgd"]([], 0.1, 0.9, True),
)

if __name__ == "__main__":
    assert "pipeline.learning.apex" not in sys.modules
    PRECISIONS["fp32"]("cpu")
    for choice in CHOICES:
        try:
            choice()
        except ModuleNotFoundError as error:
            print(error.name)
