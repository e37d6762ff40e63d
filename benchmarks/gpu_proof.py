"""What only a GPU can show, promise by promise, each in fresh processes.

    python -m benchmarks.gpu_proof                  on one NVIDIA GPU, with Apex and its extensions
    python -m benchmarks.gpu_proof --device cpu     the dry run: what a CPU can show is shown, the rest is listed
    python -m benchmarks.gpu_proof --only resume    the cases with this in their names

Writes FOLDER/gpu_proof_<device>.json (--out, by default benchmarks/results) after every case; started again, it goes on
after the last one. The exit status is 1 if a promise is broken. No network, no data: pictures are drawn from noise.

Processes are fresh because Apex O1 patches torch for as long as a process lives. Two ranks share the one GPU and
exchange over gloo (NCCL refuses two ranks on a GPU), so that what is summed are really two ranks' numbers.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.optim import Optimizer
from torchvision.models.resnet import BasicBlock

from benchmarks import measuring
from pipeline import files, machine, params, runs, validity
from pipeline.engine import loop, variables, world
from pipeline.engine.ema import Ema
from pipeline.engine.optimizers import OPTIMIZERS
from pipeline.engine.parallel import PARALLELS, SYNC_BNS, Spread, accumulating
from pipeline.engine.precision import PRECISIONS, Precision
from pipeline.engine.world import World
from pipeline.packed import Packed
from pipeline.residency import Squares

Figures = dict[str, float | str | bool]
PINS = Path("docker/pins.env")
LIMIT_SECONDS = 120  # a case takes a tenth of it; what hangs is broken
CORES_A_CASE = 4  # most of a case is the start of its processes, so cases run at once; but for those of speed
HALF = ("fp16", "O1", "O2", "O3")
CONVOLUTION = {"bf16": torch.bfloat16, **dict.fromkeys(HALF, torch.float16)}  # every other precision: float32


@dataclass(frozen=True)
class Case:
    """A promise: the function that shows it in each of its processes, and what that needs."""

    show: Callable[[World], Figures]
    ranks: int = 1
    needs: Literal["nothing", "cuda", "compiler", "apex"] = "apex"


def hold(truth: bool, promise: str) -> None:
    """Raise AssertionError with the promise if it is not kept (a plain assert vanishes under python -O)."""
    if not truth:
        raise AssertionError(promise)


# ---------------------------------------------------------------- a training like train.py's, in small


def small_resnet() -> nn.Module:
    """A residual network with all that torchvision's have, 48 thousand weights of it; the same ones each time."""
    torch.manual_seed(0)
    shortcut = nn.Sequential(nn.Conv2d(32, 48, 1, 2, bias=False), nn.BatchNorm2d(48))
    stem = [nn.Conv2d(3, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks = [BasicBlock(32, 32), BasicBlock(32, 48, 2, shortcut)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 4))


def plain_net() -> nn.Module:
    """Convolutions without BatchNorm: its gradients do not depend on how a batch is cut."""
    torch.manual_seed(0)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)]
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), *head)


@dataclass(frozen=True)
class Setup:
    """A model ready to train: bare, and as it is spread over the processes."""

    bare: nn.Module
    spread: Spread
    optimizer: Optimizer
    precision: Precision

    @property
    def model(self) -> nn.Module:
        """What is called with pictures."""
        return self.spread.model


def setup(
    place: World,
    precision: str,
    parallel: str = "single",
    *,
    make: Callable[[], nn.Module] = small_resnet,
    optimizer: str = "sgd",
    momentum: float = 0.9,
    deterministic: bool = True,
    parts: int = 0,
) -> Setup:
    """In the pipeline's order: model, device, optimizer, precision, wrap. A global batch has `parts`, or one a rank."""
    bare = make().to(place.device)
    groups = [{"params": list(bare.parameters()), "scale": 1.0, "weight_decay": 5e-4 if momentum else 0.0}]
    updater = OPTIMIZERS[optimizer](groups, 0.05, momentum, momentum > 0, (0.9, 0.999))
    numbers = PRECISIONS[precision](place.device.type)
    bare, updater = numbers.prepare(bare, updater)
    return Setup(bare, PARALLELS[parallel](bare, place, deterministic, parts or place.size), updater, numbers)


def batches(
    place: World, first: int, last: int, *, size: int = 32, side: int = 0, rate: float = 0.02
) -> list[loop.Batch]:
    """This rank's shares of steps first to last − 1: noise whose brightness is its class; a function of the step."""
    side = side or (32 if place.device.type == "cuda" else 16)  # a CPU takes its time for half precision
    made = []
    for step in range(first, last):
        source = torch.Generator().manual_seed(step)
        labels = torch.randint(4, (size,), generator=source)
        images = torch.randn((size, 3, side, side), generator=source) + labels.view(-1, 1, 1, 1) - 1.5
        mine = slice(place.rank, None, place.size)
        images, labels = images[mine].to(place.device), labels[mine].to(place.device)
        made.append(loop.Batch(step, images, labels, labels, rate, 0))
    return made


def train(
    ready: Setup, steps: Sequence[loop.Batch], *, accumulate: int = 1, clip_norm: float = 0.0, ema: Ema | None = None
) -> list[float]:
    """Take the steps with the engine's own loop; this rank's loss of each."""
    alone = World(0, 0, 1, steps[0].images.device)  # the batches are already this rank's shares
    spread = ready.spread if accumulate == 1 else accumulating(ready.model, alone, accumulate)
    counts = loop.Counts.zero(alone.device, spread.mine.stop)
    average = ema or Ema.of(ready.bare, 0)
    recipe = loop.Recipe(nn.CrossEntropyLoss(), ready.precision, ready.optimizer, average, clip_norm)
    losses = []
    for _ in loop.train(spread, steps, recipe, counts):
        loss, _, pictures = counts.sums.sum(0).tolist()
        losses.append(loss / pictures)
        counts.sums.zero_()
    return losses


def masters(ready: Setup) -> Tensor:
    """What the optimizer updates, as one float32 vector: the weights, or under O2 their masters."""
    updated = (p for group in ready.optimizer.param_groups for p in group["params"])
    return torch.cat([p.detach().float().flatten() for p in updated])


def gradients(model: nn.Module) -> Tensor:
    """The gradients as one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def distance(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖."""
    return float((found - expected).double().norm() / expected.double().norm())


def everywhere(place: World, value: Tensor) -> bool:
    """Whether all ranks hold the same bytes."""
    held: list[Any] = [None] * place.size
    dist.all_gather_object(held, digest(value))
    return len(set(held)) == 1


def digest(*parts: Any) -> str:
    """SHA-256 over the bytes of tensors and the text of everything else, in any nesting."""
    found, todo = hashlib.sha256(), list(parts)
    while todo:
        part = todo.pop()
        if isinstance(part, Tensor):
            found.update(f"{part.dtype}".encode() + part.detach().cpu().contiguous().numpy().tobytes())
        elif isinstance(part, dict):
            todo += [(key, part[key]) for key in sorted(part, key=repr)]
        elif isinstance(part, list | tuple):
            todo += part
        else:
            found.update(repr(part).encode())
    return found.hexdigest()


# ---------------------------------------------------------------- every way trains


def case_trains(place: World, precision: str, parallel: str) -> Figures:
    """The loss falls, convolutions run in the precision's type, ranks stay equal, and what is saved is float32."""
    ready = setup(place, precision, parallel)
    types: set[torch.dtype] = set()
    convolution = ready.bare.get_submodule("0")
    hook = convolution.register_forward_hook(lambda module, inputs, output: types.add(output.dtype))
    losses = train(ready, batches(place, 0, 30))
    hook.remove()
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    hold(last < 0.8 * first, f"the loss falls: from {first} to {last}")
    hold(types == {CONVOLUTION.get(precision, torch.float32)}, f"convolutions run in the precision's type: {types}")
    hold(everywhere(place, masters(ready)), "all ranks have the same weights")
    saved = {value.dtype for value in ready.bare.state_dict().values() if value.is_floating_point()}
    hold(saved == {torch.float32}, f"what is saved is float32: {saved}")
    return {"loss_first": first, "loss_last": last, "convolution": str(types.pop())}


def case_tf32(place: World) -> Figures:
    """TF32 is used where it is asked for, for matrices and convolutions, and nowhere else."""
    torch.manual_seed(0)
    matrix = torch.randn(1024, 1024, device=place.device)
    images, weights = torch.randn(8, 64, 32, 32, device=place.device), torch.randn(64, 64, 3, 3, device=place.device)
    errors = {}
    for name in ("fp32", "tf32"):
        linear = nn.Linear(1, 1, device=place.device)
        PRECISIONS[name](place.device.type).prepare(linear, torch.optim.SGD(linear.parameters(), lr=0.1))
        errors[f"{name}_matrices"] = distance(matrix @ matrix, matrix.double() @ matrix.double())
        exact = F.conv2d(images.double(), weights.double())
        errors[f"{name}_convolutions"] = distance(F.conv2d(images, weights), exact)
    for name, error in errors.items():
        hold(error > 1e-5 if name.startswith("tf32") else error < 1e-5, f"{name}: relative error {error}")
    return {**errors}


# ---------------------------------------------------------------- gradients over ranks


def case_apex_ddp_gradients(place: World) -> Figures:
    """Apex's DDP gives the gradients of torch's, delayed and overlapping, from the first pass on."""
    worst = {}
    for deterministic in (True, False):
        one, other = (
            setup(place, "fp32", parallel, deterministic=deterministic).model for parallel in ("ddp", "apex_ddp")
        )
        name = "delayed" if deterministic else "overlapping"
        worst[name] = max(_apart(one, other, batch) for batch in batches(place, 0, 4))
        hold(worst[name] < 1e-6, f"{name}: gradients differ by {worst[name]}")
    return {**worst}


def case_apex_ddp_buckets(place: World) -> Figures:
    """The same with several buckets under way at once, which a race would spoil."""

    def wide() -> nn.Module:
        torch.manual_seed(0)
        squares = [nn.Linear(2048, 2048, bias=False) for _ in range(6)]  # a bucket is sent at 10 million numbers
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2048), *squares, nn.Linear(2048, 4))

    one, other = (
        setup(place, "fp32", parallel, make=wide, deterministic=False).model for parallel in ("ddp", "apex_ddp")
    )
    worst = max(_apart(one, other, batch) for batch in batches(place, 0, 6, side=8))
    hold(worst < 1e-6, f"gradients differ by {worst}")
    buckets = int(getattr(other, "num_buckets", 0))
    hold(buckets > 1, f"there are several buckets: {buckets}")
    return {"difference": worst, "buckets": buckets}


def _apart(one: nn.Module, other: nn.Module, batch: loop.Batch) -> float:
    """How far apart the gradients of two wrapped models are on a batch."""
    found = []
    for model in (one, other):
        model.zero_grad()
        F.cross_entropy(model(batch.images), batch.labels).backward()
        found.append(gradients(model))
    return distance(found[1], found[0])


def case_apex_ddp_channels_last(place: World) -> Figures:
    """Whether Apex's DDP scrambles the gradients of channels_last convolutions, already alone: shown or refuted."""
    apart = {}
    for name, layout in (("contiguous", torch.contiguous_format), ("channels_last", torch.channels_last)):
        model = small_resnet().to(place.device).to(memory_format=layout)  # type: ignore[call-overload]
        (batch,) = batches(place, 0, 1)
        images = batch.images.to(memory_format=layout)
        F.cross_entropy(model(images), batch.labels).backward()
        alone = gradients(model)
        model.zero_grad()
        F.cross_entropy(PARALLELS["apex_ddp"](model, place, True, place.size).model(images), batch.labels).backward()
        apart[name] = distance(gradients(model), alone)
    hold(apart["contiguous"] < 1e-6, f"contiguous gradients are left alone: {apart['contiguous']}")
    return {**apart, "scrambled": apart["channels_last"] > 1e-3}


def case_accumulation(place: World, precision: str, parallel: str) -> Figures:
    """Two parts of a batch on each of two ranks move the weights as one part does, and all ranks alike."""
    ready = setup(place, precision, parallel, make=plain_net, momentum=0)
    train(ready, batches(place, 0, 5, rate=0.0))  # the loss scale settles
    weights = deepcopy(ready.bare.state_dict())
    numbers = deepcopy(ready.precision.state_dict(ready.optimizer))
    before, changes = masters(ready), []
    for accumulate in (1, 2):
        ready.bare.load_state_dict(weights)
        ready.precision.load_state_dict(deepcopy(numbers), ready.optimizer)
        train(ready, batches(place, 0, 1, rate=1.0), accumulate=accumulate)
        changes.append(masters(ready) - before)
        hold(everywhere(place, changes[-1]), f"all ranks move alike with {accumulate} parts")
    apart = distance(changes[1], changes[0])
    hold(apart < (2e-2 if precision in HALF else 1e-4), f"parts move the weights as the whole does: {apart}")
    return {"difference": apart}


def case_sync_bn(place: World, kind: str, dtype: torch.dtype) -> Figures:
    """Synchronized over two ranks, BatchNorm gives what plain BatchNorm gives for both ranks' pictures together."""
    source = torch.Generator().manual_seed(0)
    images, weight = (torch.randn((16, 6, 5, 7), generator=source).to(place.device, dtype) for _ in range(2))
    norms = (nn.BatchNorm2d(6).to(place.device), SYNC_BNS[kind](nn.Sequential(nn.BatchNorm2d(6))).to(place.device))
    slices = (slice(None), slice(place.rank, None, place.size))
    found: list[dict[str, Tensor]] = []
    for norm, mine in zip(norms, slices, strict=True):
        shown = images[mine].float() if norm is norms[0] else images[mine]
        shown.requires_grad_()
        out = norm(shown)
        (out * weight[mine]).float().sum().backward()
        scale, shift = norm.parameters()
        mean, variance, count = norm.buffers()
        hold(count.item() == 1, "a batch is counted once")
        assert shown.grad is not None
        assert scale.grad is not None
        assert shift.grad is not None
        values = {"output": out, "input": shown.grad, "scale": scale.grad, "shift": shift.grad}
        found.append({**{key: value.detach() for key, value in values.items()}, "mean": mean, "variance": variance})
        found[-1]["evaluation"] = norm.eval()(shown).detach()
    whole, part = found
    apart = {}
    for key, value in part.items():
        seen = world.total(value.float()) if key in ("scale", "shift") else value.float()
        of_pictures = key in ("output", "input", "evaluation")
        apart[key] = distance(seen, whole[key][slices[1]] if of_pictures else whole[key])
        hold(apart[key] < (5e-3 if dtype is torch.float16 else 1e-5), f"{key} differs by {apart[key]}")
    return {**apart}


def case_elastic(place: World, precision: str) -> Figures:
    """Four shards give the same bits on two ranks as on one, and so do six steps begun on two and ended on one."""
    steps = batches(World(0, 0, 1, place.device), 0, 6)
    ready = setup(place, precision, "elastic", parts=4)
    mine = slice(*(len(steps[0].labels) * rank // place.size for rank in (place.rank, place.rank + 1)))
    shares = [replace(s, images=s.images[mine], labels=s.labels[mine], targets=s.targets[mine]) for s in steps]
    train(ready, shares[:3])
    moved, alone = (setup(World(0, 0, 1, place.device), precision, "elastic", parts=4) for _ in range(2))
    moved.bare.load_state_dict(ready.bare.state_dict())
    moved.optimizer.load_state_dict(deepcopy(ready.optimizer.state_dict()))
    moved.precision.load_state_dict(deepcopy(ready.precision.state_dict(ready.optimizer)), moved.optimizer)
    train(ready, shares[3:])
    train(moved, steps[3:])
    train(alone, steps)
    hold(_digest(ready) == _digest(alone), "two ranks have the bits of one")
    hold(_digest(moved) == _digest(alone), "moved from two ranks to one in the middle, the bits stay")
    return {"digest": _digest(alone)[:16]}


# ---------------------------------------------------------------- steps


def case_step(place: World, precision: str, optimizer: str) -> Figures:
    """The weights move by rate × clipped norm; an overflow skips one step, halves the scale, and leaves no trace."""
    ready = setup(place, precision, optimizer=optimizer, momentum=0)
    train(ready, batches(place, 0, 1, rate=0.0) * 10, clip_norm=1.0)  # the loss scale settles
    figures: Figures = {}
    for rate in (0.5, 1.0):
        before = masters(ready)
        train(ready, batches(place, 0, 1, rate=rate), clip_norm=0.1)
        figures[f"moved_at_{rate}"] = moved = (masters(ready) - before).norm().item()
        hold(abs(moved / (0.1 * rate) - 1) < 1e-2, f"the weights move by {0.1 * rate}: {moved}")
    if precision in HALF:
        before, scale = masters(ready), _scale(ready)
        (broken,) = batches(place, 1, 2)
        broken.images[0, 0, 0, 0] = torch.inf
        train(ready, [broken], clip_norm=0.5, accumulate=2)
        hold(torch.equal(masters(ready), before), "an overflow skips the step")
        hold(_scale(ready) == scale / 2, f"an overflow halves the scale: {scale} to {_scale(ready)}")
        train(ready, batches(place, 2, 3))
        hold(not torch.equal(masters(ready), before), "the step after an overflow is taken")
        hold(bool(masters(ready).isfinite().all()), "an overflow leaves no trace")
        figures["scale"] = scale
    return figures


def _scale(ready: Setup) -> float:
    state = ready.precision.state_dict(ready.optimizer)
    return float(state["scalers"]["loss_scaler0"]["loss_scale"] if "scalers" in state else state["scale"])


def case_masters(place: World) -> Figures:
    """Under O2 the half weights are the masters' roundings, on all ranks, and the masters are more than these."""
    ready = setup(place, "O2", "ddp")
    train(ready, batches(place, 0, 10))
    weights = list(ready.bare.parameters())
    updated = [p for group in ready.optimizer.param_groups for p in group["params"]]
    hold({p.dtype for p in updated} == {torch.float32}, "masters are float32")
    hold({p.dtype for p in weights} == {torch.float16, torch.float32}, "weights are half, BatchNorm's float32")
    hold(all(torch.equal(m.to(w.dtype), w) for w, m in zip(weights, updated, strict=True)), "weights round the masters")
    hold(everywhere(place, masters(ready)), "all ranks have the same masters")
    apart = distance(torch.cat([w.detach().float().flatten() for w in weights]), masters(ready))
    hold(0 < apart < 1e-3, f"the masters hold what half precision rounds off: {apart}")
    return {"rounded_off": apart}


def case_fused_sgd(place: World, precision: str) -> Figures:
    """FusedSGD moves the weights as SGD does: momentum, Nesterov, decay; under O2 weights round masters."""
    found = {}
    for optimizer in ("sgd", "fused_sgd"):
        ready = setup(place, precision, optimizer=optimizer)
        train(ready, batches(place, 0, 1))
        updated = [p for group in ready.optimizer.param_groups for p in group["params"]]
        source = torch.Generator().manual_seed(0)
        for _ in range(5):
            for weight in updated:
                weight.grad = torch.randn(weight.shape, generator=source).to(place.device)
            ready.optimizer.step()
        found[optimizer] = masters(ready)
        for weight, master in zip(ready.bare.parameters(), updated, strict=True):
            hold(torch.equal(master.to(weight.dtype), weight), f"{optimizer}: weights round the masters")
    apart = distance(found["fused_sgd"], found["sgd"])
    hold(apart < 1e-6, f"FusedSGD and SGD are {apart} apart")
    return {"difference": apart}


def case_overflow_kernel(place: World) -> Figures:
    """amp_C scales half to float exactly, and sees an infinity or a NaN at either end of a tensor of any size."""
    import amp_C  # type: ignore[import-not-found]

    chunk = 2048 * 32
    for size in (1, 555, chunk - 1, chunk, chunk + 1, 3 * chunk + 7):
        source = torch.randn(size, device=place.device).half()
        target = torch.empty(size, device=place.device)
        flag = torch.zeros(1, dtype=torch.int, device=place.device)
        amp_C.multi_tensor_scale(chunk, flag, [[source], [target]], 1 / 128)
        hold(flag.item() == 0 and torch.equal(target, source.float() / 128), f"{size} numbers are scaled")
        for position in (0, -1):
            for value in (torch.inf, torch.nan):
                broken = source.clone()
                broken[position] = value
                flag.zero_()
                amp_C.multi_tensor_scale(chunk, flag, [[broken], [target]], 1 / 128)
                hold(flag.item() == 1, f"{value} at {position} of {size} numbers is seen")
    return {"sizes": 6}


# ---------------------------------------------------------------- O1's casts and their cache


def case_o1_cache(place: World) -> Figures:
    """Loaded weights answer in an evaluation, as they do not without our guard; gradients after it are unharmed."""
    ready = setup(place, "O1")
    other = small_resnet().to(place.device).eval()
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.25)
    (batch,) = batches(place, 0, 1)
    with torch.no_grad():
        expected = other(batch.images).float()  # O1 patches torch itself: this model runs under it too
        ready.precision.weights_changed()
        ready.bare.eval()(batch.images)
        ready.bare.load_state_dict(other.state_dict())
        stale = distance(ready.bare(batch.images).float(), expected)
        ready.precision.weights_changed()
        guarded = ready.bare(batch.images).float()
    hold(stale > 0, "without the guard the old weights answer; if not, the guard is not needed")
    hold(torch.equal(guarded, expected), "after weights_changed the new weights answer")
    ready.bare.load_state_dict(small_resnet().state_dict())
    ready.bare.load_state_dict(other.state_dict())
    (evaluated,) = loop.logits(ready.model, [batch.images], ready.precision)
    hold(torch.equal(evaluated, expected), "in loop.logits the new weights answer")

    def step_gradients() -> Tensor:
        ready.bare.train()
        ready.bare.zero_grad()
        ready.precision.backward(F.cross_entropy(ready.bare(batch.images), batch.labels), ready.optimizer)
        return gradients(ready.bare)

    before = step_gradients()
    list(loop.logits(ready.model, [batch.images], ready.precision))
    hold(torch.equal(step_gradients(), before), "an evaluation between two steps changes no gradient")
    return {"stale_by": stale}


def case_o1_casts(place: World) -> Figures:
    """What O1 computes in which type, what it refuses, and that `exact` computes what is written."""
    ready = setup(place, "O1")
    single = torch.rand(4, 4, device=place.device)
    half, double = single.half(), single.double()
    norm = nn.BatchNorm1d(4).to(place.device)
    computed: dict[str, tuple[Tensor, torch.dtype]] = {
        "linear": (F.linear(single, single), torch.float16),
        "matmul": (single @ single, torch.float16),
        "convolution": (F.conv2d(single[None, None], single[None, None]), torch.float16),
        "softmax": (F.softmax(half, 1), torch.float32),
        "cross_entropy": (F.cross_entropy(half, torch.arange(4, device=place.device)), torch.float32),
        "power": (half**2.0, torch.float32),
        "sum": (half.sum(), torch.float32),
        "relu of half": (F.relu(half), torch.float16),
        "relu of single": (F.relu(single), torch.float32),
        "norm of half": (norm(half), torch.float16),
        "product of both": (half * single, torch.float32),
        "concatenation of both": (torch.cat([half, single]), torch.float32),
        "sum into half": (half.clone().add_(single), torch.float16),
    }
    for name, (result, dtype) in computed.items():
        hold(result.dtype == dtype, f"{name} gives {dtype}: {result.dtype}")
    refused: dict[str, Callable[[], object]] = {
        "binary cross-entropy of half": lambda: F.binary_cross_entropy(half, half),
        "exponential into half": lambda: half.clone().exp_(),
        "product with double": lambda: single * double,
    }
    for name, compute in refused.items():
        hold(_raises(NotImplementedError, compute), f"{name} is refused")
    with ready.precision.exact():
        hold((single @ single).dtype == torch.float32, "inside exact nothing is cast")
        hold((single * double).dtype == torch.float64, "inside exact types mix as torch mixes them")
    hold((single @ single).dtype == torch.float16, "after exact O1 casts again")
    weight = nn.Parameter(single.clone())
    twice = _raises(IndexError, lambda: F.linear(F.linear(single, weight), weight))
    ready.precision.weights_changed()
    return {"types": len(computed), "refused": len(refused), "weight_used_twice_fails": twice}


def _raises(kind: type[Exception], compute: Callable[[], object]) -> bool:
    try:
        compute()
    except kind:
        return True
    return False


# ---------------------------------------------------------------- the average and the resume


def case_ema(place: World, precision: str) -> Figures:
    """The average has its closed form; it answers inside `applied`, the weights before and after."""
    ready = setup(place, precision)
    ema = Ema.of(ready.bare, 0.75)
    expected = [average.double() for average in ema.averages]
    for batch in batches(place, 0, 5):
        train(ready, [batch], ema=ema)
        with ready.precision.exact():
            expected = [0.75 * e + 0.25 * weight.double() for e, weight in zip(expected, ema.weights, strict=True)]
    with ready.precision.exact():
        apart = distance(*(torch.cat([t.flatten() for t in tensors]) for tensors in (ema.averages, expected)))
    hold(apart < 1e-6, f"the average differs from its closed form by {apart}")
    images = batches(place, 9, 10)[0].images

    def answer() -> Tensor:
        (found,) = loop.logits(ready.model, [images], ready.precision)
        return found

    before = answer()
    with ema.applied():
        inside, averaged = answer(), deepcopy(ready.bare.state_dict())
    hold(torch.equal(answer(), before), "after applied the weights answer")
    hold(not torch.equal(inside, before), "inside applied the averages answer")
    ready.bare.load_state_dict(averaged)
    hold(torch.equal(answer(), inside), "inside applied nothing but the averages answers")
    return {"difference": apart}


def case_graphs(place: World, precision: str) -> Figures:
    """CUDA graphs replay the kernels that the compiled model starts one by one: the same bits, in an evaluation too."""
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # that fp32 is not TF32 is meant
    found = {}
    for mode in ("default", "reduce-overhead"):
        torch.compiler.reset()
        ready = setup(place, precision)
        ready.bare.compile(mode=mode, dynamic=False)
        train(ready, batches(place, 0, 5))
        seen = list(loop.logits(ready.model, [batch.images for batch in batches(place, 5, 8)], ready.precision))
        train(ready, batches(place, 5, 10))
        found[mode] = digest(_digest(ready), seen)
    hold(found["default"] == found["reduce-overhead"], "graphs change no bit")
    return {"digest": found["default"][:16]}


def case_resume(place: World, precision: str) -> Figures:
    """Three steps, a save, a new process and three more steps have the bits of six steps."""
    with tempfile.TemporaryDirectory() as folder:
        ready = setup(place, precision)
        train(ready, batches(place, 0, 3))
        state = {
            "model": ready.bare.state_dict(),
            "precision": ready.precision.state_dict(ready.optimizer),
            "optimizer": ready.optimizer.state_dict(),
        }
        torch.save(state, Path(folder) / "checkpoint.pt")
        train(ready, batches(place, 3, 6))
        other = multiprocessing.get_context("spawn").Process(target=_go_on, args=(place, precision, folder))
        other.start()
        other.join()
        hold(other.exitcode == 0, "the second process ends well")
        hold((Path(folder) / "digest").read_text() == _digest(ready), "a resumed run has the same bits")
    return {"digest": _digest(ready)[:16]}


def _go_on(place: World, precision: str, folder: str) -> None:
    """The second process of `case_resume`."""
    _begin(place)
    ready = setup(place, precision)
    state = torch.load(Path(folder) / "checkpoint.pt", map_location=place.device, weights_only=True)
    ready.bare.load_state_dict(state["model"])
    ready.precision.load_state_dict(state["precision"], ready.optimizer)
    ready.optimizer.load_state_dict(state["optimizer"])
    train(ready, batches(place, 3, 6))
    (Path(folder) / "digest").write_text(_digest(ready))


def _digest(ready: Setup) -> str:
    return digest(ready.bare.state_dict(), ready.optimizer.state_dict(), ready.precision.state_dict(ready.optimizer))


def case_waits(place: World, precision: str, optimizer: str) -> Figures:
    """How often a step waits for the GPU, with train.py's own batches and all that may be done to them: never. But the
    host asks whether a step overflowed before it takes it: with fp16 once, with Apex's levels as often as Apex does."""
    from benchmarks import ours  # here, for it brings TensorBoard, which no other case needs
    from pipeline import train as training

    settings = params.load().train.model_copy(
        update={"precision": precision, "batch_size": 16, "crop": 32, "erasing": 0.5, "color_jitter": 0.2}
        | {"mixup": 0.2, "epochs": 10, "warmup_epochs": 0}
    )
    noise = np.random.default_rng(0).integers(0, 256, (64, 40, 40, 3), np.uint8)
    data = Packed(
        images=noise,
        paths=("",) * len(noise),
        classes=("a", "b", "c", "d"),
        labels=np.arange(len(noise)) % 4,
        sizes=np.full((len(noise), 2), 50, np.int32),
        splits=np.full(len(noise), "train"),
        digest="",
    )
    ready = setup(place, precision, optimizer=optimizer)
    squares = Squares(torch.from_numpy(noise).to(place.device), place.device)
    stream = training.batches(settings, data, squares, 0, place, 1, ready.precision, ours.Never())
    average = Ema.of(ready.bare, 0.9)
    recipe = loop.Recipe(nn.CrossEntropyLoss(), ready.precision, ready.optimizer, average, clip_norm=1.0)
    steps = loop.train(ready.spread, stream, recipe, loop.Counts.zero(place.device, 1))
    for _ in range(10):  # the first choose algorithms, send constants, and let the loss scale settle
        next(steps)
    torch.cuda.synchronize()
    warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(20):
            next(steps)
    torch.cuda.set_sync_debug_mode("default")
    others = [str(one.message) for one in said if "called a synchronizing CUDA operation" not in str(one.message)]
    hold(not others, f"nothing else is warned of: {others}")
    waits = len(said) / 20
    if precision in NATIVE:
        hold(waits == (precision == "fp16"), f"{waits} waits a step")
    return {"waits_a_step": waits}


def case_speed(place: World, precision: str, optimizer: str) -> Figures:
    """Pictures a second and the most memory of ResNet-34 on 64 pictures of 224 × 224 pixels, as deterministic as
    the pipeline is by default."""
    ready = setup(place, precision, make=lambda: torchvision.models.resnet34(num_classes=5), optimizer=optimizer)
    (batch,) = batches(place, 0, 1, size=64, side=224)
    train(ready, [batch] * 5)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    started = time.perf_counter()
    train(ready, [batch] * 20)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    memory = torch.cuda.max_memory_allocated() / 1e6
    return {"images_per_second": round(20 * 64 / seconds, 1), "gpu_memory_mb": round(memory, 1)}


# ---------------------------------------------------------------- the table of cases

NATIVE = ("fp32", "tf32", "bf16", "fp16")


def _needs(precision: str) -> Literal["nothing", "cuda", "apex"]:
    if precision in NATIVE:
        return "cuda" if precision == "tf32" else "nothing"
    return "apex"


def _cases() -> dict[str, Case]:
    found = {}
    for precision in PRECISIONS:
        needs = _needs(precision)
        for parallel, ranks in (("single", 1), ("ddp", 2), ("apex_ddp", 2)):
            if (precision, parallel) != ("bf16", "apex_ddp"):  # which is refused: Apex reduces no bf16
                show = partial(case_trains, precision=precision, parallel=parallel)
                found[f"trains/{precision}/{parallel}"] = Case(show, ranks, "apex" if "apex" in parallel else needs)
        if precision in NATIVE:
            show = partial(case_trains, precision=precision, parallel="elastic")
            found[f"trains/{precision}/elastic"] = Case(show, 2, needs)
            found[f"elastic/{precision}"] = Case(partial(case_elastic, precision=precision), 2, needs)
        if precision not in ("O0", "O3"):
            found[f"resume/{precision}"] = Case(partial(case_resume, precision=precision), needs=needs)
        if precision in ("fp32", "fp16", "O1", "O2"):
            found[f"ema/{precision}"] = Case(partial(case_ema, precision=precision), needs=needs)
            step = partial(case_step, precision=precision)
            found[f"step/{precision}/sgd"] = Case(partial(step, optimizer="sgd"), needs=needs)
            if precision in ("fp16", "O2"):
                found[f"step/{precision}/fused_sgd"] = Case(partial(step, optimizer="fused_sgd"))
            for parallel in ("ddp", "apex_ddp"):
                show = partial(case_accumulation, precision=precision, parallel=parallel)
                spread = "apex" if parallel == "apex_ddp" else needs
                found[f"accumulation/{precision}/{parallel}"] = Case(show, 2, spread)
        speed = partial(case_speed, precision=precision)
        found[f"speed/{precision}/sgd"] = Case(
            partial(speed, optimizer="sgd"), needs="cuda" if needs != "apex" else needs
        )
    found["speed/fp16/fused_sgd"] = Case(partial(case_speed, precision="fp16", optimizer="fused_sgd"))
    for kind in ("torch", "apex"):
        for dtype in (torch.float32, torch.float16):
            name = f"sync_bn/{kind}/{str(dtype).removeprefix('torch.')}"
            show = partial(case_sync_bn, kind=kind, dtype=dtype)
            found[name] = Case(show, 2, "apex" if kind == "apex" else "cuda")
    return found | {
        **{
            f"waits/{precision}/{optimizer}": Case(
                partial(case_waits, precision=precision, optimizer=optimizer),
                needs="cuda" if precision in NATIVE else "apex",
            )
            for precision, optimizer in (*((native, "sgd") for native in NATIVE), ("bf16", "adamw"), ("O1", "sgd"))
        },
        "tf32": Case(case_tf32, needs="cuda"),
        "graphs/fp32": Case(partial(case_graphs, precision="fp32"), needs="compiler"),
        "graphs/bf16": Case(partial(case_graphs, precision="bf16"), needs="compiler"),
        "apex_ddp/gradients": Case(case_apex_ddp_gradients, ranks=2),
        "apex_ddp/buckets": Case(case_apex_ddp_buckets, ranks=2),
        "apex_ddp/channels_last": Case(case_apex_ddp_channels_last),
        "masters/O2": Case(case_masters, ranks=2),
        "fused_sgd/fp32": Case(partial(case_fused_sgd, precision="fp32")),
        "fused_sgd/O2": Case(partial(case_fused_sgd, precision="O2")),
        "overflow_kernel": Case(case_overflow_kernel),
        "o1/cache": Case(case_o1_cache),
        "o1/casts": Case(case_o1_casts),
    }


CASES = _cases()


def lacks(case: Case, device: str) -> str:
    """What a case needs and this machine has not, or nothing."""
    here = machine.read()
    if case.needs == "nothing" and device == "cpu":
        return ""
    if device == "cpu" or here.cuda_devices == 0:
        return "needs a GPU" + (" and Apex with its extensions" if case.needs == "apex" else "")
    if case.needs == "compiler" and not here.compiler:
        return "needs a C++ compiler"
    return f"needs {validity.NO_APEX[here.apex]}" if case.needs == "apex" and here.apex != "usable" else ""


# ---------------------------------------------------------------- running them


def _begin(place: World) -> None:
    """Pin what decides bits, as train.py does."""
    world.fix_arithmetic(1, True)
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)


def show(name: str, device: str, rank: int, folder: str) -> None:
    """One rank of a case; rank 0 writes what it found to FOLDER/found.json."""
    case = CASES[name]
    place = World(rank, 0, case.ranks, torch.device("cuda", 0) if device == "cuda" else torch.device("cpu"))
    _begin(place)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=case.ranks,
        timeout=timedelta(seconds=LIMIT_SECONDS / 2),
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        figures = case.show(place)
    dist.destroy_process_group()
    if place.first:
        said = sorted({f"{warning.category.__name__}: {warning.message}" for warning in caught})
        files.write_json(Path(folder) / "found.json", {"figures": figures, "warnings": said})


CHILD = "import sys; from benchmarks.gpu_proof import show; show(*sys.argv[1:3], int(sys.argv[3]), sys.argv[4])"


def prove(name: str, device: str) -> dict[str, Any]:
    """Run a case in fresh processes: its outcome (held, broken, skipped) with the figures or the reason."""
    case = CASES[name]
    if reason := lacks(case, device):
        return {"outcome": "skipped", "reason": reason}
    started = time.monotonic()
    environ = {**os.environ, **variables.environment(1, True)}
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / f"rank{rank}.txt" for rank in range(case.ranks)]
        ranks = []
        for rank, path in enumerate(said):
            command = [sys.executable, "-c", CHILD, name, device, str(rank), folder]
            with path.open("w") as file:
                ranks.append(subprocess.Popen(command, env=environ, stdout=file, stderr=subprocess.STDOUT))
        codes = [_ended(process, started + LIMIT_SECONDS) for process in ranks]
        seconds = round(time.monotonic() - started, 1)
        if any(codes):
            text = next(path.read_text() for path, code in zip(said, codes, strict=True) if code)
            reason = (text.strip().splitlines() or ["it said nothing"])[-1]
            return {"outcome": "broken", "reason": reason, "seconds": seconds}
        return {"outcome": "held", **json.loads((Path(folder) / "found.json").read_text()), "seconds": seconds}


def _ended(process: subprocess.Popen[bytes], deadline: float) -> int:
    """The exit status of a process, which is killed at the deadline."""
    try:
        return process.wait(max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def head(device: str) -> dict[str, Any]:
    """What the report is valid for: the machine, the versions and the commit."""
    place = World(0, 0, 1, torch.device("cuda", 0) if device == "cuda" else torch.device("cpu"))
    pins = dict(line.split("=", 1) for line in PINS.read_text().splitlines() if "=" in line and line[0] != "#")
    return {
        "device": device,
        **runs.hardware(place, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "cudnn": torch.backends.cudnn.version(),
        "apex": machine.read().apex,
        "apex_commit_pinned": pins["APEX_COMMIT"],
        "commit": _git("rev-parse", "HEAD"),
        "changed": _git("status", "--porcelain", "--", "pipeline", "benchmarks/gpu_proof.py").splitlines(),
    }


def _git(*command: str) -> str:
    """What git says; nothing where there is no git or no repository, such as on a lent machine."""
    try:
        return subprocess.run(["git", *command], capture_output=True, text=True, check=True).stdout.rstrip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def line(name: str, result: dict[str, Any]) -> str:
    """A line of the table."""
    figures = result.get("figures", {})
    told = ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()
    )
    warned = f" [{len(result['warnings'])} warnings]" if result.get("warnings") else ""
    return f"{result['outcome']:8} {name:32} {result.get('seconds', ''):>6} {result.get('reason', told)}{warned}"


def main(arguments: list[str]) -> int:
    """Run the cases that the report lacks; 1 if any is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_proof", description="what only a GPU can show")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the report")
    parser.add_argument("--only", default="", help="run the cases with this in their names")
    asked = parser.parse_args(arguments)
    names = [name for name in CASES if asked.only in name]
    if not names:
        parser.error(f"--only: {asked.only!r} is in no name of a case; allowed: a part of {', '.join(CASES)}")
    if asked.device == "cuda" and machine.read().cuda_devices == 0:
        parser.error("--device: 'cuda' needs an NVIDIA GPU and its driver (found: none); the dry run: --device cpu")
    path = asked.out / f"gpu_proof_{asked.device}.json"
    report: dict[str, Any] = {"of": head(asked.device), "cases": {}}
    if path.exists():
        earlier = json.loads(path.read_text())
        if earlier["of"] != report["of"]:
            parser.error(f"{path}: of another machine, environment or commit; remove it, or choose another --out")
        report = earlier
    measured = [name for name in names if name.startswith("speed/")]
    others = [name for name in names if name not in measured]
    for together, at_once in ((others, max(1, measuring.cores() // CORES_A_CASE)), (measured, 1)):
        pool = ThreadPoolExecutor(at_once)
        try:
            missing = [name for name in together if name not in report["cases"]]
            proofs = {name: pool.submit(prove, name, asked.device) for name in missing}
            for name in together:
                if name in proofs:
                    report["cases"][name] = proofs[name].result()
                    files.write_json(path, report)
                print(line(name, report["cases"][name]), flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    outcomes = Counter(report["cases"][name]["outcome"] for name in names)
    print(f"{outcomes['held']} held, {outcomes['broken']} broken, {outcomes['skipped']} skipped: {path}")
    return int(outcomes["broken"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
