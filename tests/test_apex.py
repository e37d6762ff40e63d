"""The guards of engine/apex.py, each against the real Python code of Apex on CPU tensors, in a fresh process each.

    APEX_SRC=<folder with Apex at docker/pins.env's APEX_COMMIT> python -m pytest tests/test_apex.py

A fresh process, because O1 patches torch for as long as a process lives. Apex refuses CPU tensors by looking at
`is_cuda` and at type names; `relax` makes exactly these looks say CUDA, and everything behind them is Apex's own. What
the extensions do instead of the Python code, and what a GPU rounds otherwise, is shown by tests/gpu.
"""

import ast
import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.engine import loop
from pipeline.engine.choices import PARALLELS, PRECISIONS, SYNC_BNS
from pipeline.engine.ema import Ema
from pipeline.engine.parallel import accumulating
from pipeline.engine.precision import Precision
from pipeline.engine.world import World
from tests.conftest import PROJECT

APEX_SRC = os.environ.get("APEX_SRC", "")
needs_apex = pytest.mark.skipif(
    not APEX_SRC, reason="needs Apex's source at docker/pins.env's APEX_COMMIT, named by APEX_SRC=<folder>"
)
LEVELS = ("O0", "O1", "O2", "O3")
Scenario = Callable[..., Any]


def command(scenario: Scenario, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.test_apex", scenario.__name__, *map(str, arguments)]


def environment(*folders: Path) -> dict[str, str]:
    """Apex is found through PYTHONPATH, after `folders`."""
    path = [*map(str, folders), str(PROJECT), APEX_SRC]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


def fresh(scenario: Scenario, *arguments: object, folders: tuple[Path, ...] = ()) -> Any:
    """What a scenario returns, run in a process of its own where every warning is an error."""
    done = subprocess.run(
        command(scenario, *arguments),
        cwd=PROJECT, env=environment(*folders), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def fresh_pair(scenario: Scenario, folder: Path, *arguments: object) -> tuple[Any, Any]:
    """What a scenario returns on rank 0 and on rank 1 of two processes that meet in `folder`."""
    ranks = [
        subprocess.Popen(
            command(scenario, folder, rank, *arguments),
            cwd=PROJECT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [process.communicate() for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(errors for _, errors in said)
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in said)
    return first, second


# ---------------------------------------------------------------- in the fresh process


def relax() -> None:
    """Let Apex take CPU tensors for CUDA tensors: these five looks, and nothing it computes.

    `Tensor.is_cuda`; the names of `Tensor.type()`; the constructor of its overflow flags; the streams that its DDP
    asks for; the marks that its SyncBatchNorm leaves for a profiler.
    """
    real_type = torch.Tensor.type

    def cuda_type(tensor: Tensor, dtype: Any = None, **options: Any) -> Any:
        return real_type(tensor, dtype, **options) if dtype else real_type(tensor).replace("torch.", "torch.cuda.")

    changed: dict[Any, dict[str, Any]] = {
        torch.Tensor: {"is_cuda": True, "type": cuda_type, "record_stream": lambda tensor, stream: None},
        torch.cuda: {
            "IntTensor": torch.IntTensor, "current_stream": lambda: None, "stream": lambda stream: nullcontext(),
        },
        torch.cuda.nvtx: {"range_push": lambda message: None, "range_pop": lambda: None},
    }  # fmt: skip
    for owner, attributes in changed.items():
        for name, value in attributes.items():
            setattr(owner, name, value)


def small(norm: bool = True) -> nn.Sequential:
    """A small model with everything the levels treat differently; the same weights each time."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8) if norm else nn.Identity(), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 4))


def prepared(level: str, momentum: float = 0.9, norm: bool = True) -> tuple[Precision, nn.Module, Optimizer]:
    """A small model under a precision, as train.py makes it; the head is a group of its own."""
    model = small(norm)
    *body, weight, bias = model.parameters()
    groups = [{"params": body, "scale": 1.0}, {"params": [weight, bias], "scale": 2.0}]
    precision = PRECISIONS[level]("cpu")
    return precision, *precision.prepare(model, torch.optim.SGD(groups, lr=1.0, momentum=momentum))


def batches(first: int, last: int, size: int = 8, rate: float = 0.1) -> list[loop.Batch]:
    """The batches of steps first to last − 1: a pure function of the step."""
    made = []
    for step in range(first, last):
        source = torch.Generator().manual_seed(step)
        labels = torch.randint(4, (size,), generator=source)
        images = torch.randn((size, 3, 8, 8), generator=source) + labels.view(-1, 1, 1, 1)
        made.append(loop.Batch(step, images, labels, labels, rate, 0))
    return made


def train(
    model: nn.Module, steps: list[loop.Batch], precision: Precision, optimizer: Optimizer, *,
    accumulate: int = 1, clip_norm: float = 0.0, ema: Ema | None = None,
) -> None:  # fmt: skip
    """Take the steps with the engine's own loop."""
    criterion = nn.CrossEntropyLoss()
    recipe = loop.Recipe(criterion, precision, optimizer, ema or Ema.of(model, 0), clip_norm)
    world = World(0, 0, 1, torch.device("cpu"))
    totals = loop.Totals.zero(world.device, accumulate)
    for _ in loop.train(accumulating(model, world, accumulate), steps, recipe, totals):
        pass


def masters(optimizer: Optimizer) -> Tensor:
    """What the optimizer updates, as one vector."""
    return torch.cat([p.detach().float().flatten() for group in optimizer.param_groups for p in group["params"]])


def digest(*parts: Any) -> str:
    """SHA-256 over the bytes of tensors in any nesting."""
    found = hashlib.sha256()
    todo = list(parts)
    while todo:
        part = todo.pop()
        if isinstance(part, Tensor):
            found.update(repr(part.dtype).encode() + part.detach().numpy().tobytes())
        elif isinstance(part, dict):
            todo += [part[key] for key in sorted(part, key=repr)]
        elif isinstance(part, list | tuple):
            todo += part
        else:
            found.update(repr(part).encode())
    return found.hexdigest()


# ---------------------------------------------------------------- without Apex

MODULES = {
    "missing": [],
    "without amp": ["apex/__init__.py", "apex/optimizers/__init__.py"],
    "without extensions": ["apex/__init__.py", "apex/amp/__init__.py", "apex/parallel/__init__.py", "amp_C.py"],
    "usable": [
        "apex/__init__.py", "apex/amp/__init__.py", "apex/parallel/__init__.py", "amp_C.py", "apex_C.py", "syncbn.py",
    ],
}  # fmt: skip


@pytest.mark.parametrize("state", MODULES)
def test_the_machine_tells_the_states_of_an_installation_apart(state: str, tmp_path: Path) -> None:
    """Missing, without amp and parallel (as released today), without the three extensions, usable: by files alone."""
    for name in MODULES[state]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("raise AssertionError('to be looked at, not imported')")
    code = "import sys; from pipeline.config import machine; print(machine._apex(), 'torch' in sys.modules)"
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(PROJECT)])}
    said = subprocess.run(  # -S: whatever is installed beside is not seen
        [sys.executable, "-S", "-c", code], cwd=tmp_path, env=path, capture_output=True, text=True, check=True
    )
    assert said.stdout == f"{state} False\n"


WITHOUT = """
import sys
sys.modules["apex"] = None  # as if it were not installed
from pipeline.engine.choices import OPTIMIZERS, PARALLELS, PRECISIONS, SYNC_BNS
assert "pipeline.engine.apex" not in sys.modules
PRECISIONS["fp32"]("cpu")
for make in (
    *(lambda level=level: PRECISIONS[level]("cpu") for level in ("O0", "O1", "O2", "O3")),
    lambda: PARALLELS["apex_ddp"](None, None, True, 1),
    lambda: SYNC_BNS["apex"](None),
    lambda: OPTIMIZERS["fused_sgd"]([], 0.1, 0.9, True, (0.9, 0.999)),
):
    try:
        make()
    except ModuleNotFoundError as error:
        print(error.name)
"""


def test_apex_is_imported_only_when_it_is_asked_for() -> None:
    """The tables can be read and their native members used without Apex; each of its seven choices then misses it."""
    said = subprocess.run([sys.executable, "-c", WITHOUT], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["apex"] * 7


# ---------------------------------------------------------------- the extensions


def fault() -> str:
    from pipeline.engine import apex

    return apex.fault()


@needs_apex
def test_extensions_that_do_not_load_are_named(tmp_path: Path) -> None:
    """Apex falls back quietly when its extensions were built for another torch; here the first such one is said."""
    (tmp_path / "amp_C.py").write_text("")
    (tmp_path / "apex_C.py").write_text("raise ImportError('undefined symbol: const_data_ptr')")
    found = fresh(fault, folders=(tmp_path,))
    assert found == "its extension apex_C does not load (undefined symbol: const_data_ptr)"


# ---------------------------------------------------------------- O1: casts and their cache


def stale() -> dict[str, bool]:
    precision, model, _ = prepared("O1", norm=False)  # BatchNorm keeps its float32 weights under O1
    model.eval()
    other = small(norm=False)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.5)
    other.eval()
    images = batches(0, 1)[0].images

    def found() -> Tensor:
        with torch.no_grad():
            answer: Tensor = model(images)
        return answer

    before = found()
    with torch.no_grad():
        expected = other(images)  # O1 patches torch itself: this model runs under it too
    model.load_state_dict(other.state_dict())
    unguarded = found()
    precision.weights_changed()
    guarded = found()
    model.load_state_dict(small(norm=False).state_dict())
    (evaluated,) = loop.logits(model, [images], precision)
    return {
        "half": before.dtype == torch.float16,
        "unguarded is old": torch.equal(unguarded, before),
        "guarded is new": torch.equal(guarded, expected) and not torch.equal(before, expected),
        "the loop's is new": torch.equal(evaluated, before.float()),
    }


@needs_apex
def test_evaluation_sees_weights_that_were_loaded_under_o1() -> None:
    """Without `weights_changed` the old weights' half copies answer; with it, and in `loop.logits`, the new ones do."""
    assert all(fresh(stale).values())


def averaged() -> dict[str, bool]:
    precision, model, optimizer = prepared("O1")
    ema = Ema.of(model, 0.5)
    train(model, batches(0, 4), precision, optimizer, ema=ema)
    images = batches(9, 10)[0].images
    (before,) = loop.logits(model, [images], precision)
    twin = small()
    with ema.applied():
        (inside,) = loop.logits(model, [images], precision)
        twin.load_state_dict(model.state_dict())
    (after,) = loop.logits(model, [images], precision)
    (expected,) = loop.logits(twin, [images], precision)
    return {
        "averages answer inside": torch.equal(inside, expected),
        "weights answer outside": torch.equal(before, after),
        "they differ": not torch.equal(before, inside),
    }


@needs_apex
def test_the_average_of_the_weights_is_what_is_evaluated_under_o1() -> None:
    """Exchanging weights for their average and back is seen by each evaluation, cache or no cache."""
    assert all(fresh(averaged).values())


def exactness() -> dict[str, bool]:
    precision, _, _ = prepared("O1")
    square, double = torch.randn(4, 4), torch.randn(4, 4, dtype=torch.float64)

    def half() -> bool:
        return (square @ square).dtype == torch.float16

    found = {"cast outside": half()}
    with pytest.raises(NotImplementedError):
        square * double
    with precision.exact():
        found["not cast inside"] = not half()
        found["types mix as torch mixes them"] = (square * double).dtype == torch.float64
        with precision.exact():
            pass
        found["nor after an inner block"] = not half()
    found["cast after"] = half()
    with pytest.raises(ZeroDivisionError), precision.exact():
        1 / 0  # noqa: B018
    found["cast after an error"] = half()
    return found


@needs_apex
def test_exact_switches_o1_casts_off_and_on_again() -> None:
    """Inside the block torch computes what is written, after it O1 casts again, even if the block ended in an error."""
    assert all(fresh(exactness).values())


def sums_on_the_cpu() -> dict[str, bool]:
    """Which way from the device keeps the bits of float64 sums, under O1."""
    precision, model, optimizer = prepared("O1")
    train(model, batches(0, 1), precision, optimizer)
    exact = torch.tensor(1 + 2.0**-40, dtype=torch.float64)
    return {"cpu() keeps them": exact.cpu().item() != 1, "to() keeps them": exact.to("cpu").item() == 1 + 2.0**-40}


@needs_apex
def test_float64_sums_are_not_rounded_on_their_way_from_the_gpu_under_o1() -> None:
    """Apex replaces Tensor.cpu by one that rounds to float32, so the pipeline calls Tensor.to instead."""
    assert fresh(sums_on_the_cpu) == {"cpu() keeps them": False, "to() keeps them": True}


def test_the_pipeline_never_calls_tensor_cpu() -> None:
    """Apex's O1 replaces Tensor.cpu for the whole process: `.to("cpu")` says the same and keeps every bit."""
    calls = [
        f"{path.relative_to(PROJECT)}:{node.lineno}"
        for path in sorted((PROJECT / "pipeline").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cpu"
    ]
    assert calls == []


# ---------------------------------------------------------------- steps


def moved(level: str) -> dict[str, float]:
    precision, model, optimizer = prepared(level, momentum=0)
    found = {}
    for rate in (0.0, 0.25, 0.5):
        before = masters(optimizer)
        train(model, batches(0, 1, rate=rate), precision, optimizer, clip_norm=0.125)
        change = masters(optimizer) - before
        head = 4 * 33  # the head's weights and biases, whose group has twice the rate
        change[-head:] /= 2
        found[str(rate)] = change.norm().item()
    return found


@needs_apex
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_the_loops_rate_and_the_clipped_norm_reach_the_masters(level: str) -> None:
    """Plain SGD moves the masters by rate × clipped norm: the schedule acts on Apex's optimizer, and what is clipped
    is the unscaled gradient of what the optimizer updates."""
    found = fresh(moved, level)
    assert found["0.0"] == 0
    assert found["0.25"] == pytest.approx(0.25 * 0.125, rel=1e-3)
    assert found["0.5"] == pytest.approx(0.5 * 0.125, rel=1e-3)


def zeroed() -> dict[str, bool]:
    precision, model, optimizer = prepared("O2")
    refused = False
    try:
        optimizer.zero_grad(set_to_none=True)
    except TypeError:
        refused = True
    train(model, batches(0, 2), precision, optimizer)
    everything = [*model.parameters(), *(p for group in optimizer.param_groups for p in group["params"])]
    return {
        "set_to_none is a TypeError": refused,
        "nothing is left of the gradients": all(p.grad is None or not p.grad.any() for p in everything),
    }


@needs_apex
def test_gradients_are_set_back_under_o2() -> None:
    """Apex's zero_grad takes no argument; the step leaves no gradient on weights or masters."""
    assert all(fresh(zeroed).values())


def overflown(level: str) -> dict[str, bool]:
    precision, model, optimizer = prepared(level)
    train(model, batches(0, 1), precision, optimizer)
    scale = precision.state_dict(optimizer)["scalers"]["loss_scaler0"]["loss_scale"]
    before = masters(optimizer)
    (broken,) = batches(1, 2)
    broken.images[0, 0, 0, 0] = torch.inf
    statistics = deepcopy(model.state_dict())
    train(model, [broken], precision, optimizer, accumulate=2, clip_norm=1.0)
    skipped = torch.equal(masters(optimizer), before)
    model.load_state_dict(statistics)  # BatchNorm has seen the infinity
    state = precision.state_dict(optimizer)
    train(model, batches(2, 3), precision, optimizer)
    return {
        "the step is skipped": skipped,
        "the scale is halved": state["scalers"]["loss_scaler0"]["loss_scale"] == scale / 2,
        "the next step is taken": not torch.equal(masters(optimizer), before)
        and bool(masters(optimizer).isfinite().all()),
    }


@needs_apex
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_an_overflow_skips_one_step_and_halves_the_scale(level: str) -> None:
    """Also when it happens in the first of two accumulated parts and the gradients are clipped."""
    assert all(fresh(overflown, level).values())


# ---------------------------------------------------------------- resume


def resumed(level: str, folder: str, part: str) -> str:
    """The digest after six steps: in one go (`whole`, which saves after three), or from what was saved."""
    precision, model, optimizer = prepared(level)
    saved = Path(folder) / "checkpoint.pt"
    if part == "whole":
        train(model, batches(0, 3), precision, optimizer)
        state = {"optimizer": optimizer.state_dict(), "precision": precision.state_dict(optimizer)}
        torch.save({"model": model.state_dict(), **state}, saved)
    else:
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        if part == "optimizer first":
            optimizer.load_state_dict(state["optimizer"])
        if part == "without masters":
            state["precision"]["masters"] = [p.half().float() for p in state["precision"]["masters"]]
        precision.load_state_dict(state["precision"], optimizer)
        if part != "optimizer first":
            optimizer.load_state_dict(state["optimizer"])
    train(model, batches(3, 6), precision, optimizer)
    return digest(model.state_dict(), optimizer.state_dict(), precision.state_dict(optimizer))


@needs_apex
@pytest.mark.parametrize("level", LEVELS)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(level: str, tmp_path: Path) -> None:
    """Weights, masters, momentum and loss scale of six steps equal those of three, a save, a new process, and three."""
    whole = fresh(resumed, level, tmp_path, "whole")
    assert fresh(resumed, level, tmp_path, "the rest") == whole


@needs_apex
def test_a_resume_under_o2_needs_the_masters_and_their_order(tmp_path: Path) -> None:
    """Half weights do not determine the masters, and a momentum loaded before the masters exist is rounded to half."""
    whole = fresh(resumed, "O2", tmp_path, "whole")
    assert fresh(resumed, "O2", tmp_path, "without masters") != whole
    assert fresh(resumed, "O2", tmp_path, "optimizer first") != whole


# ---------------------------------------------------------------- parallel wrappers


def meet(folder: str, rank: int, size: int) -> World:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    return World(rank, 0, size, torch.device("cpu"))


def wrapped(folder: str, sync_bn: str) -> dict[str, Any]:
    world = meet(folder, 0, 1)
    model = SYNC_BNS[sync_bn](small())
    by_choice = {choice: PARALLELS["apex_ddp"](model, world, choice, 1).model for choice in (True, False)}
    found = {
        "delayed": by_choice[True].delay_allreduce,
        "overlapping": not by_choice[False].delay_allreduce,
        "unwrapped": by_choice[True].module is model,
        "norm": {type(m).__name__: type(m).__module__ for m in model.modules()}["SyncBatchNorm"].split(".")[0],
    }
    dist.destroy_process_group()
    return found


@needs_apex
def test_apex_ddp_is_made_for_one_order_of_sums_or_for_speed(tmp_path: Path) -> None:
    """Deterministic: one reduction after the backward pass; otherwise it overlaps. No warning comes through."""
    made = fresh(wrapped, tmp_path, "apex")
    assert made == {"delayed": True, "overlapping": True, "unwrapped": True, "norm": "apex"}


def parallel_model(folder: str, rank: str, level: str, parallel: str, accumulate: str) -> list[float]:
    """The masters after two steps of two processes, each with its half of every batch."""
    world = meet(folder, int(rank), 2)
    precision, model, optimizer = prepared(level, norm=False)
    mine = [
        replace(
            b, images=b.images[world.rank :: 2], labels=b.labels[world.rank :: 2], targets=b.targets[world.rank :: 2]
        )
        for b in batches(0, 2)
    ]
    train(PARALLELS[parallel](model, world, True, 2).model, mine, precision, optimizer, accumulate=int(accumulate))
    dist.destroy_process_group()
    return [float(value) for value in masters(optimizer)]


def alone(level: str) -> list[float]:
    """The masters after the same two steps of one process."""
    precision, model, optimizer = prepared(level, norm=False)
    train(model, batches(0, 2), precision, optimizer)
    return [float(value) for value in masters(optimizer)]


@needs_apex
@pytest.mark.parametrize("parallel", ["ddp", "apex_ddp"])
@pytest.mark.parametrize("level", ["fp32", "O1", "O2"])
def test_accumulated_parts_are_exchanged_whole(level: str, parallel: str, tmp_path: Path) -> None:
    """Two processes with two parts each stay equal bit for bit, and equal one process with the whole batch to
    rounding: no part's gradients are put aside unexchanged."""
    first, second = fresh_pair(parallel_model, tmp_path, level, parallel, 2)
    assert first == second
    assert first == pytest.approx(fresh(alone, level), abs=1e-6 if level == "fp32" else 2e-3)


def replica() -> bool:
    _, model, _ = prepared("O0")
    copy = model._replicate_for_data_parallel()
    return copy.forward is model.forward


@needs_apex
def test_a_replica_under_apex_runs_the_originals_weights() -> None:
    """Apex casts by an attribute of the model itself, even at O0, which a copy shares: O0 does not go with dp."""
    assert fresh(replica) is True


def test_the_average_follows_statistics_that_get_new_storage() -> None:
    """Apex's SyncBatchNorm gives its running mean new storage at every step (`mean.data = …`)."""
    norm = nn.BatchNorm2d(2)
    assert norm.running_mean is not None
    ema = Ema.of(norm, 0.5)
    norm.running_mean.data = torch.ones(2)
    with torch.no_grad():
        ema.update()
        with ema.applied():
            assert norm.running_mean.tolist() == [0.5, 0.5]


if __name__ == "__main__":
    warnings.simplefilter("error")
    relax()
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
