"""A small training with the engine, like train.py's, for the tests of this folder. Its images are noise."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torchvision.models.resnet import BasicBlock

from pipeline.learning import determinism, loop
from pipeline.learning.choices import OPTIMIZERS, PARALLELS, PRECISIONS
from pipeline.learning.ema import Ema
from pipeline.learning.graphs import Graphs
from pipeline.learning.parallel import ParallelModel, accumulating_model
from pipeline.learning.precision import Precision
from pipeline.learning.world import World
from pipeline.loader.batches import Batch

Figures = dict[str, float | str | bool]
NATIVE = ("fp32", "tf32", "bf16", "fp16")
HALF = ("fp16", "O1", "O2", "O3")


def begin(world: World, with_apex: bool) -> None:
    """Make torch deterministic, as train.py does."""
    determinism.make_deterministic(1, True)
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    elif with_apex:
        relax_apex()


def relax_apex() -> None:
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


def small_resnet() -> nn.Module:
    """A residual network of torchvision's blocks with 48,000 weights. They are always the same."""
    torch.manual_seed(0)
    shortcut = nn.Sequential(nn.Conv2d(32, 48, 1, 2, bias=False), nn.BatchNorm2d(48))
    stem = [nn.Conv2d(3, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks = [BasicBlock(32, 32), BasicBlock(32, 48, 2, shortcut)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 4))


def plain_net() -> nn.Module:
    """Convolutions without BatchNorm: the gradients do not depend on the microbatches."""
    torch.manual_seed(0)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)]
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), *head)


@dataclass(frozen=True)
class Setup:
    """A model ready to train, unwrapped and wrapped for several processes."""

    bare: nn.Module
    parallel_model: ParallelModel
    optimizer: Optimizer
    precision: Precision

    @property
    def model(self) -> nn.Module:
        """The wrapped model, which is called with images."""
        return self.parallel_model.model


def setup(
    world: World,
    precision: str,
    parallel: str = "single",
    *,
    make: Callable[[], nn.Module] = small_resnet,
    optimizer: str = "sgd",
    momentum: float = 0.9,
    deterministic: bool = True,
    microbatches: int = 0,
) -> Setup:
    """Model, device, optimizer, precision, wrapper, in the pipeline's order. `microbatches` 0: one per rank."""
    bare = make().to(world.device)
    groups = [{"params": list(bare.parameters()), "scale": 1.0, "weight_decay": 5e-4 if momentum else 0.0}]
    updater = OPTIMIZERS[optimizer](groups, 0.05, momentum, momentum > 0)
    numbers = PRECISIONS[precision](world.device.type)
    bare, updater = numbers.prepare(bare, updater)
    return Setup(bare, PARALLELS[parallel](bare, world, deterministic, microbatches or world.size), updater, numbers)


def batches(world: World, first: int, last: int, *, side: int = 0) -> list[Batch]:
    """This rank's shares of the steps in [first, last), of 32 images: noise with its class as brightness.

    They are a function of the step.
    """
    side = side or (32 if world.device.type == "cuda" else 16)  # a CPU is slow in half precision
    steps = []
    for step in range(first, last):
        source = torch.Generator().manual_seed(step)
        labels = torch.randint(4, (32,), generator=source)
        images = torch.randn((32, 3, side, side), generator=source) + labels.view(-1, 1, 1, 1) - 1.5
        rows = slice(world.rank, None, world.size)
        images, labels = images[rows].to(world.device), labels[rows].to(world.device)
        steps.append(Batch(step, images, labels, labels, 1000 * step))
    return steps


def train(
    ready: Setup,
    steps: Sequence[Batch],
    *,
    rate: float = 0.02,
    microbatches: int = 1,
    clip_norm: float = 0.0,
    ema: Ema | None = None,
    graphs: Graphs | None = None,
) -> list[float]:
    """Take the steps with the engine's loop, and with CUDA graphs if some are given. This rank's loss of each step."""
    alone = World(0, 0, 1, steps[0].images.device)  # the batches are already this rank's shares
    parallel_model = ready.parallel_model if microbatches == 1 else accumulating_model(ready.model, alone, microbatches)
    totals = loop.Totals.zero(alone.device, parallel_model.share.total)
    average = ema or Ema.create(ready.bare, 0)
    criterion = nn.CrossEntropyLoss()
    passes = graphs or loop.EAGER
    learner = loop.Learner(ready.bare, criterion, ready.optimizer, ready.precision, average, clip_norm, passes)
    losses, rates = [], [rate] * (1 + max(batch.step for batch in steps))
    for _ in loop.train(learner, parallel_model, steps, rates, totals):
        loss, _, images = totals.sums.sum(0).tolist()
        losses.append(loss / images)
        totals.sums.zero_()
    return losses


def masters(ready: Setup) -> Tensor:
    """The parameters that the optimizer updates, as one float32 vector: the weights, or under O2 their masters."""
    parameters = (p for group in ready.optimizer.param_groups for p in group["params"])
    return torch.cat([p.detach().float().flatten() for p in parameters])


def gradients(model: nn.Module) -> Tensor:
    """The gradients as one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def distance(result: Tensor, expected: Tensor) -> float:
    """‖result − expected‖ / ‖expected‖."""
    return float((result - expected).detach().double().norm() / expected.detach().double().norm())


def everywhere(world: World, value: Tensor) -> bool:
    """Whether all ranks hold the same bytes."""
    digests: list[Any] = [None] * world.size
    dist.all_gather_object(digests, digest(value))
    return len(set(digests)) == 1


def digest(*values: Any) -> str:
    """SHA-256 of the bytes of tensors and the text of all other values, in any nesting."""
    sha, todo = hashlib.sha256(), list(values)
    while todo:
        part = todo.pop()
        if isinstance(part, Tensor):
            sha.update(f"{part.dtype}".encode() + part.detach().to("cpu").contiguous().numpy().tobytes())
        elif isinstance(part, dict):
            todo += [(key, part[key]) for key in sorted(part, key=repr)]
        elif isinstance(part, list | tuple):
            todo += part
        else:
            sha.update(repr(part).encode())
    return sha.hexdigest()


def state_digest(ready: Setup) -> str:
    return digest(ready.bare.state_dict(), ready.optimizer.state_dict(), ready.precision.state_dict(ready.optimizer))
