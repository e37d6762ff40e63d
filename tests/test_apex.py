"""Apex's states on a machine, and the guards of learning/apex.py on a CPU, with Apex's Python code.

    APEX_SRC=<folder with Apex at docker/pins.env's APEX_COMMIT> python -m pytest tests/test_apex.py

Apex refuses CPU tensors by `is_cuda` and by type names. tests/gpu/training.py changes exactly these checks. The same
tests on a GPU show what the extensions do instead of the Python code, and how a GPU rounds.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from pipeline import learning
from pipeline.learning.choices import OPTIMIZERS, PARALLELS, PRECISIONS, SYNC_BNS
from pipeline.learning.ema import Ema
from tests.conftest import PROJECT
from tests.gpu import ranks
from tests.helpers.trainings import ALONE

APEX_SRC = os.environ.get("APEX_SRC", "")
needs_apex = pytest.mark.skipif(
    not APEX_SRC, reason="needs Apex's source at docker/pins.env's APEX_COMMIT, named by APEX_SRC=<folder>"
)
# Of tests/gpu: those that need no extension of Apex, with their arguments.
OF_APEX = ("o1_cache", "o1_casts", "resume_of_o2", "gradients_of_o2", "sums_of_o1", "replica_of_o0")
CASES: list[tuple[str, dict[str, str]]] = [
    *((f"test_apex::test_{name}", {}) for name in OF_APEX),
    *(("test_state::test_ema", {"precision": level}) for level in ("O1", "O2")),
    *(("test_state::test_resume", {"precision": level}) for level in ("O0", "O1", "O2", "O3")),
    *(("test_precision::test_step", {"precision": level, "optimizer": "sgd"}) for level in ("O0", "O1", "O2")),
    ("test_parallel::test_apex_ddp_gradients", {}),
    ("test_parallel::test_accumulation", {"precision": "fp32", "parallel": "apex_ddp"}),
    *(
        ("test_parallel::test_accumulation", {"precision": level, "parallel": parallel})
        for level, parallel in product(("O1", "O2"), ("ddp", "apex_ddp"))
    ),
]
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
    (tmp_path / "psutil").symlink_to(Path(psutil.__file__).parent)  # machine.py counts cores by it
    code = "import sys; from pipeline.checks import machine; print(machine._apex(), 'torch' in sys.modules)"
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(PROJECT)])}
    done = subprocess.run(  # -S: whatever is installed beside is not seen
        [sys.executable, "-S", "-c", code], cwd=tmp_path, env=path, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{state} False\n"


WITH_APEX: dict[str, Callable[[], object]] = {
    **{level: partial(PRECISIONS[level], "cpu") for level in ("O0", "O1", "O2", "O3")},
    "apex_ddp": lambda: PARALLELS["apex_ddp"](nn.Identity(), ALONE, True, 1),
    "sync_bn": lambda: SYNC_BNS["apex"](nn.Identity()),
    "fused_sgd": lambda: OPTIMIZERS["fused_sgd"]([], 0.1, 0.9, True),
}


@pytest.mark.parametrize("choice", WITH_APEX)
def test_apex_is_imported_only_when_it_is_asked_for(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The native members of the tables can be used without Apex; each of its seven choices misses it."""
    monkeypatch.setitem(sys.modules, "apex", None)
    monkeypatch.delitem(sys.modules, "pipeline.learning.apex", raising=False)
    monkeypatch.delattr(learning, "apex", raising=False)
    PRECISIONS["fp32"]("cpu")
    with pytest.raises(ModuleNotFoundError, match="apex"):
        WITH_APEX[choice]()


@needs_apex
def test_extensions_that_do_not_load_are_named(tmp_path: Path) -> None:
    """Apex falls back quietly when its extensions were built for another torch; here the first such one is said."""
    (tmp_path / "amp_C.py").write_text("")
    (tmp_path / "apex_C.py").write_text("raise ImportError('undefined symbol: const_data_ptr')")
    command = [sys.executable, "-W", "error", "-c", "from pipeline.learning import apex; print(apex.fault())"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(PROJECT), APEX_SRC])}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout == "its extension apex_C does not load (undefined symbol: const_data_ptr)\n", done.stderr


@needs_apex
@pytest.mark.parametrize(("test", "arguments"), CASES, ids=str)
def test_a_guard_holds_on_a_cpu(test: str, arguments: dict[str, str]) -> None:
    """The body of a test for a GPU passes, in fresh processes: O1 patches torch until the process ends."""
    ranks.check_on_cpu(test, arguments, 2 if test.startswith("test_parallel") else 1, "apex")


def test_the_pipeline_never_calls_tensor_cpu() -> None:
    """Apex's O1 replaces Tensor.cpu for the whole process: `.to("cpu")` says the same and keeps every bit."""
    calls = [
        f"{path.relative_to(PROJECT)}:{node.lineno}"
        for path in sorted((PROJECT / "pipeline").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cpu"
    ]
    assert calls == []


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
