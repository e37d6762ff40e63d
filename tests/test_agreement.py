"""Processes whose params, data, code, packages or variables differ from those of process 0 do not train."""

import os
import re
import shutil
import subprocess
import threading
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pipeline.base.errors import Fault, UserError
from pipeline.config import params
from pipeline.learning import environment
from pipeline.learning.world import World
from pipeline.running import agreement, provenance
from pipeline.running.agreement import Facts
from pipeline.running.job import common_facts
from pipeline.versioning import identity
from tests.conftest import set_params
from tests.helpers.damage import flip
from tests.helpers.nodes import TRAIN, nodes, start
from tests.helpers.refusals import refuses
from tests.helpers.trainings import ALONE, small_world


def failures(*processes: subprocess.Popen[str]) -> list[str]:
    """The standard errors of both nodes, after both have failed."""
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1], "\n---\n".join(errors)
    assert not any("Traceback" in words for words in errors), "\n---\n".join(errors)
    return errors


@pytest.mark.slow("two real starts of torchrun; make test has processes that differ, in one process")
def test_nodes_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    """Params, data, code and variables differ on the second node: no step is taken, and both nodes name them."""
    first, second = nodes(tmp_path, run__timeout_seconds=300)
    set_params(second, train__lr=0.05, train__seed=7, run__log_steps=7)
    lines = (second / "data/split.csv").read_text()
    (second / "data/split.csv").write_text(lines.replace("circle", "disc"))
    (second / "pipeline").unlink()
    shutil.copytree(first / "pipeline", second / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    with (second / "pipeline/learning/schedule.py").open("a") as code:
        code.write("# other code\n")
    for words in failures(start(first, TRAIN), start(second, TRAIN, NCCL_PROTO="LL")):
        for name, theirs, ours in (
            ("train.lr", "0.05", "0.01"), ("train.seed", "7", "0"), ("run.log_steps", "7", "20"),
            ("SHA-256 of paths.split", "'", "'"), ("pipeline/learning/schedule.py", "'", "'"),
            ("NCCL_PROTO", "'LL'", "'Simple'"),
        ):  # fmt: skip
            (line,) = {line for line in words.splitlines() if f"train: {name}: " in line}
            assert all(part in line for part in (theirs, "process 1 of 2", ours))
        assert "epoch" not in words
    assert not (first / "models").exists()


@pytest.mark.nightly("two real starts of torchrun; make test-ci has two nodes that differ, which are refused")
def test_a_node_without_its_data_ends_the_others_too(tmp_path: Path) -> None:
    """One node has a changed pixel. The other one does not wait, and says the same."""
    first, second = nodes(tmp_path, run__timeout_seconds=300)
    flip(second / "data/packed/images-00000.bin")
    of_first, of_second = failures(start(first, TRAIN), start(second, TRAIN))
    assert re.search("train: process 1 of 2 .*data/packed", of_first)
    assert "train: data/packed" in of_second


def both(*facts: Facts | UserError) -> list[tuple[Fault, ...]]:
    """The faults of two processes with these facts, or with an error of their own; empty if they go on."""
    store, refusals = dist.HashStore(), [tuple[Fault, ...]()] * 2

    def be(rank: int) -> None:
        try:
            with agreement.compare_facts(store, World(rank, rank, 2, torch.device("cpu"))) as own_facts:
                if isinstance(own := facts[rank], UserError):
                    raise own
                own_facts.update(own)
        except UserError as error:
            refusals[rank] = error.faults

    threads = [threading.Thread(target=be, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return refusals


def test_processes_of_other_versions_or_of_other_kinds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions of libraries are compared for every way; CPU instructions only for elastic, whose shards can move."""
    small_world(tmp_path, train__parallel="elastic")
    monkeypatch.chdir(tmp_path)
    config, world = params.load(), World(0, 0, 2, torch.device("cpu"))
    one = common_facts(config, identity.training_parts(config, "packed"), world)
    assert both(one, one) == [(), ()]
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", lambda name: f"0.0 of {name}")
        patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
        other = common_facts(config, identity.training_parts(config, "packed"), world)
    faults, of_second = both(one, other)
    assert faults == of_second
    values = {fault.key: fault.value for fault in faults}
    assert "0.0 of numpy" in values["numpy"]
    assert "DEFAULT" in values["cpu_capability"]
    assert {fault.kind for fault in faults} == {"differs"}
    ddp = config.model_copy(update={"train": config.train.model_copy(update={"parallel": "ddp"})})
    assert common_facts(ddp, identity.training_parts(ddp, "packed"), world).popitem()[1] == {}


def test_a_refusal_of_one_process_is_that_of_all() -> None:
    """The other one does not wait, and says which process it was."""
    fault = Fault("data/packed", "images-00000.bin", "damaged", "changed", remedy="make it again")
    (of_first,), of_second = both({}, UserError(fault))
    assert of_second == (fault,)
    assert re.match("process 1 of 2 .*data/packed", str(of_first))


def test_many_differences_are_counted() -> None:
    """Ten are named, and the rest is counted: another commit can differ in hundreds of files."""
    faults, _ = both({"mend it": {str(k): 0 for k in range(25)}}, {"mend it": {str(k): 1 for k in range(1, 25)}})
    *named, rest = str(UserError(*faults)).splitlines()
    assert [line.partition(":")[0] for line in named] == [*map(str, range(10))]
    assert "15" in rest


# Deterministic mode refuses these values.
REFUSED = {
    "MKL_CBWR": "COMPATIBLE", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "MKL_DEBUG_CPU_TYPE": "5", "OMP_DYNAMIC": "TRUE",
    "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F", "NPY_ENABLE_CPU_FEATURES": "AVX2", "NVIDIA_TF32_OVERRIDE": "0",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2", "CUBLAS_WORKSPACE_CONFIG": ":0:0", "NCCL_ALGO": "Tree",
    "NCCL_PROTO": "^LL", "TORCHINDUCTOR_DETERMINISTIC": "0",
}  # fmt: skip
# One of each family that is compared.
COMPARED = {
    "MKL_NUM_STRIPES": "2", "ONEDNN_DEFAULT_FPMATH_MODE": "BF16", "DNNL_DEFAULT_FPMATH_MODE": "BF16",
    "OPENBLAS_CORETYPE": "Haswell", "GOTO_NUM_THREADS": "2", "OMP_SCHEDULE": "dynamic", "NUMBA_FASTMATH": "1",
    "KMP_DETERMINISTIC_REDUCTION": "0", "TORCH_MKLDNN_MATMUL_MIN_DIM": "1", "TORCH_LINEAR_FLATTEN_3D": "1",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "TORCH_CUDNN_V8_API_DISABLED": "1", "TORCH_BLAS_PREFER_CUBLASLT": "1",
    "TORCH_LINALG_PREFER_CUSOLVER": "1", "CUBLASLT_WORKSPACE_SIZE": "1", "CUDNN_CONV_WSCAP_DBG": "1",
    "NCCL_BUFFSIZE": "1024", "TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHDYNAMO_DISABLE": "1",
    "TORCH_COMPILE_DISABLE": "1", "TRITON_F32_DEFAULT": "tf32", "PYTORCH_TENSOREXPR_DONT_FUSE": "1",
}  # fmt: skip
VARIABLES = REFUSED | COMPARED
QUIET = {
    "MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1", "OMP_DISPLAY_ENV": "TRUE", "NUMBA_CACHE_DIR": "numba",
    "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN", "TORCHINDUCTOR_CACHE_DIR": "inductor",
}  # fmt: skip


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_that_reaches_the_arithmetic_is_refused_or_compared(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deterministic mode refuses it by name, or a resume and the processes compare it, and provenance records it.

    Without deterministic mode it is compared too. One for logging or a cache is neither refused nor compared.
    """
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for quiet, value in QUIET.items():
        monkeypatch.setenv(quiet, value)
    monkeypatch.setattr(environment, "initial_variables", lambda: os.environ)  # as if this process began here
    before = provenance.hardware(ALONE, 1, "native")
    assert not QUIET.keys() & environment.numeric_variables(os.environ).keys()
    monkeypatch.setenv(name, VARIABLES[name])
    with refuses((name, "pair")) if name in REFUSED else nullcontext():
        environment.required_variables(1, deterministic=True)
    environment.required_variables(1, deterministic=False)
    after = provenance.hardware(ALONE, 1, "native")
    assert agreement.differences(before, after) == [(name, "not set", repr(VARIABLES[name]))]
