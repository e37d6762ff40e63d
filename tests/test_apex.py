"""The guards of engine/apex.py, with the Python code of Apex on CPU tensors. Each scenario is a new process.

    APEX_SRC=<folder with Apex at docker/pins.env's APEX_COMMIT> python -m pytest tests/test_apex.py

A process of its own, because O1 patches torch until the process ends. The scenarios are in tests/ranks/apex.py. Apex
refuses CPU tensors by `is_cuda` and by type names. `relax` changes exactly these checks. tests/gpu shows what the
extensions do instead of the Python code, and how a GPU rounds.
"""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.engine.ema import Ema
from tests.conftest import PROJECT
from tests.ranks import apex as scenarios

APEX_SRC = os.environ.get("APEX_SRC", "")
needs_apex = pytest.mark.skipif(
    not APEX_SRC, reason="needs Apex's source at docker/pins.env's APEX_COMMIT, named by APEX_SRC=<folder>"
)
LEVELS = ("O0", "O1", "O2", "O3")
Scenario = Callable[..., Any]


def command(scenario: Scenario, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.ranks.apex", scenario.__name__, *map(str, arguments)]


def environment(*folders: Path) -> dict[str, str]:
    """The environment in which Apex is found through PYTHONPATH, after `folders`."""
    path = [*map(str, folders), str(PROJECT), APEX_SRC]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


def fresh(scenario: Scenario, *arguments: object, folders: tuple[Path, ...] = ()) -> Any:
    """What a scenario returns in a new process."""
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
    outputs = [process.communicate() for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(errors for _, errors in outputs)
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in outputs)
    return first, second


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
    done = subprocess.run(  # -S: whatever is installed beside is not seen
        [sys.executable, "-S", "-c", code], cwd=tmp_path, env=path, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{state} False\n"


def test_apex_is_imported_only_when_it_is_asked_for() -> None:
    """The tables can be read and their native members used without Apex; each of its seven choices then misses it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ranks.without_apex"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["apex"] * 7


@needs_apex
def test_extensions_that_do_not_load_are_named(tmp_path: Path) -> None:
    """Apex falls back quietly when its extensions were built for another torch; here the first such one is said."""
    (tmp_path / "amp_C.py").write_text("")
    (tmp_path / "apex_C.py").write_text("raise ImportError('undefined symbol: const_data_ptr')")
    fault = fresh(scenarios.fault, folders=(tmp_path,))
    assert fault == "its extension apex_C does not load (undefined symbol: const_data_ptr)"


@needs_apex
@pytest.mark.parametrize(
    ("scenario", "arguments"),
    [
        # O1 caches half copies: weights that are loaded, and averages that are exchanged, are what is evaluated
        (scenarios.stale, ()), (scenarios.averaged, ()),
        (scenarios.exactness, ()),  # torch computes what is written, after an error, too
        (scenarios.zeroed, ()),  # Apex's zero_grad takes no argument; no gradient stays on weights or masters
        # an overflow skips one step and halves the scale, also in the first of two microbatches, with clipping
        (scenarios.overflown, ("O1",)), (scenarios.overflown, ("O2",)),
    ],
)  # fmt: skip
def test_what_apex_changes_is_made_good(scenario: Scenario, arguments: tuple[str, ...]) -> None:
    """Every fact of the scenario holds."""
    assert all(fresh(scenario, *arguments).values())


@needs_apex
def test_float64_sums_are_not_rounded_on_their_way_from_the_gpu_under_o1() -> None:
    """Apex replaces Tensor.cpu by one that rounds to float32, so the pipeline calls Tensor.to instead."""
    assert fresh(scenarios.sums_on_the_cpu) == {"cpu() keeps them": False, "to() keeps them": True}


def test_the_pipeline_never_calls_tensor_cpu() -> None:
    """Apex's O1 replaces Tensor.cpu for the whole process: `.to("cpu")` says the same and keeps every bit."""
    calls = [
        f"{path.relative_to(PROJECT)}:{node.lineno}"
        for path in sorted((PROJECT / "pipeline").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cpu"
    ]
    assert calls == []


@needs_apex
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_the_loops_rate_and_the_clipped_norm_reach_the_masters(level: str) -> None:
    """Plain SGD moves the masters by rate × clipped norm: the schedule acts on Apex's optimizer, and what is clipped
    is the unscaled gradient of what the optimizer updates."""
    lengths = fresh(scenarios.moved, level)
    assert lengths == pytest.approx({"0.0": 0, "0.25": 0.25 * 0.125, "0.5": 0.5 * 0.125}, rel=1e-3)


@needs_apex
@pytest.mark.parametrize("level", LEVELS)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(level: str, tmp_path: Path) -> None:
    """Weights, masters, momentum and loss scale of six steps equal those of three, a save, a new process, and three."""
    whole = fresh(scenarios.resumed, level, tmp_path, "whole")
    assert fresh(scenarios.resumed, level, tmp_path, "the rest") == whole


@needs_apex
def test_a_resume_under_o2_needs_the_masters_and_their_order(tmp_path: Path) -> None:
    """Half weights do not determine the masters, and a momentum loaded before the masters exist is rounded to half."""
    whole = fresh(scenarios.resumed, "O2", tmp_path, "whole")
    assert fresh(scenarios.resumed, "O2", tmp_path, "without masters") != whole
    assert fresh(scenarios.resumed, "O2", tmp_path, "optimizer first") != whole


@needs_apex
def test_apex_ddp_is_made_for_one_order_of_sums_or_for_speed(tmp_path: Path) -> None:
    """Deterministic: one reduction after the backward pass; otherwise it overlaps. No warning comes through."""
    assert fresh(scenarios.wrapped, tmp_path, "apex") == {
        "delayed": True,
        "overlapping": True,
        "unwrapped": True,
        "norm": "apex",
    }


@needs_apex
@pytest.mark.parametrize("parallel", ["ddp", "apex_ddp"])
@pytest.mark.parametrize("level", ["fp32", "O1", "O2"])
def test_accumulated_parts_are_exchanged_whole(level: str, parallel: str, tmp_path: Path) -> None:
    """Two processes with two microbatches each have equal bits, and equal one process with the whole batch up to
    rounding: the gradients of every microbatch are exchanged."""
    first, second = fresh_pair(scenarios.parallel_model, tmp_path, level, parallel, 2)
    assert first == second
    assert first == pytest.approx(fresh(scenarios.alone, level), abs=1e-6 if level == "fp32" else 2e-3)


@needs_apex
def test_a_replica_under_apex_runs_the_originals_weights() -> None:
    """Apex casts by an attribute of the model itself, even at O0, which a copy shares: O0 does not go with dp."""
    assert fresh(scenarios.replica) is True


def test_the_average_follows_statistics_that_get_new_storage() -> None:
    """Apex's SyncBatchNorm gives its running mean new storage at every step (`mean.data = …`)."""
    norm = nn.BatchNorm2d(2)
    assert norm.running_mean is not None
    ema = Ema.create(norm, 0.5)
    norm.running_mean.data = torch.ones(2)
    with torch.no_grad():
        ema.update()
        with ema.swap():
            assert norm.running_mean.tolist() == [0.5, 0.5]
