"""A small training under Apex on CPU tensors, for the scenarios of tests/ranks/apex.py."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.engine import loop
from pipeline.engine.choices import PRECISIONS
from pipeline.engine.ema import Ema
from pipeline.engine.parallel import accumulating_model
from pipeline.engine.precision import Precision
from pipeline.engine.world import World


def relax() -> None:
    """Make Apex take CPU tensors for CUDA tensors. This changes five checks and nothing that it computes.

    `Tensor.is_cuda`; the names of `Tensor.type()`; the constructor of its overflow flags; the streams of its DDP; the
    profiler ranges of its SyncBatchNorm.
    """
    real_type = torch.Tensor.type

    def cuda_type(tensor: Tensor, dtype: Any = None, **options: Any) -> Any:
        return real_type(tensor, dtype, **options) if dtype else real_type(tensor).replace("torch.", "torch.cuda.")

    changes: dict[Any, dict[str, Any]] = {
        torch.Tensor: {"is_cuda": True, "type": cuda_type, "record_stream": lambda tensor, stream: None},
        torch.cuda: {
            "IntTensor": torch.IntTensor, "current_stream": lambda: None, "stream": lambda stream: nullcontext(),
        },
        torch.cuda.nvtx: {"range_push": lambda message: None, "range_pop": lambda: None},
    }  # fmt: skip
    for owner, attributes in changes.items():
        for name, value in attributes.items():
            setattr(owner, name, value)


def small(norm: bool = True) -> nn.Sequential:
    """A small model with every kind of layer that the levels treat differently. The weights are always the same."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8) if norm else nn.Identity(), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 4))


def prepare(level: str, momentum: float = 0.9, norm: bool = True) -> tuple[Precision, nn.Module, Optimizer]:
    """A small model and its optimizer under a precision, as in train.py. The head is a parameter group of its own."""
    model = small(norm)
    *body, weight, bias = model.parameters()
    groups = [{"params": body, "scale": 1.0}, {"params": [weight, bias], "scale": 2.0}]
    precision = PRECISIONS[level]("cpu")
    return precision, *precision.prepare(model, torch.optim.SGD(groups, lr=1.0, momentum=momentum))


def batches(first: int, last: int, size: int = 8) -> list[loop.Batch]:
    """The batches of the steps in [first, last): pure functions of the step."""
    steps = []
    for step in range(first, last):
        source = torch.Generator().manual_seed(step)
        labels = torch.randint(4, (size,), generator=source)
        images = torch.randn((size, 3, 8, 8), generator=source) + labels.view(-1, 1, 1, 1)
        steps.append(loop.Batch(step, images, labels, labels, 0))
    return steps


def train(
    model: nn.Module, steps: list[loop.Batch], precision: Precision, optimizer: Optimizer, *,
    rate: float = 0.1, microbatches: int = 1, clip_norm: float = 0.0, ema: Ema | None = None,
) -> None:  # fmt: skip
    """Take the steps with the engine's loop."""
    criterion = nn.CrossEntropyLoss()
    learner = loop.Learner(model, criterion, optimizer, precision, ema or Ema.create(model, 0), clip_norm)
    rates = [rate] * (1 + max(batch.step for batch in steps))
    world = World(0, 0, 1, torch.device("cpu"))
    totals = loop.Totals.zero(world.device, microbatches)
    for _ in loop.train(learner, accumulating_model(model, world, microbatches), steps, rates, totals):
        pass


def masters(optimizer: Optimizer) -> Tensor:
    """The parameters that the optimizer updates, as one vector."""
    return torch.cat([p.detach().float().flatten() for group in optimizer.param_groups for p in group["params"]])
