"""Run a test's body in new processes, one per rank: `python -m tests.gpu.ranks DEVICE RANK FOLDER` is one of them.

New processes, because Apex O1 patches torch until the process ends. NCCL refuses two ranks on one GPU. So two ranks
share a GPU and exchange over gloo, or a case asks for `gpus`: then each rank has its own, and they exchange over NCCL.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from pipeline.base import files
from pipeline.checks import machine, validity
from pipeline.config import params
from pipeline.learning.collectives import backend_for
from pipeline.learning.environment import required_variables
from pipeline.learning.world import World
from tests.gpu.training import begin

PROJECT = Path(__file__).resolve().parents[2]
Needs = Literal["nothing", "cuda", "compiler", "apex", "extensions"]  # extensions: Apex with its compiled parts
Result = dict[str, Any]  # outcome (passed, failed, skipped), reason, figures, warnings, seconds, output
LIMIT_SECONDS = {"cuda": 300, "cpu": 600}  # on a GPU a case takes 15 s; one compiles twice, for minutes
NAMES_APEX = {*params.APEX_LEVELS, "apex", "apex_ddp", "fused_sgd"}


@dataclass(frozen=True)
class Case:
    """A test with its arguments: the function of every rank, the number of ranks, and what they need.

    `gpus`: the ranks see so many GPUs, and exchange over NCCL. 0: they share a GPU, and exchange over gloo.
    """

    module: str
    function: str
    arguments: Mapping[str, str]
    ranks: int
    needs: Needs
    gpus: int


def case(
    module: str, function: str, arguments: Mapping[str, str], ranks: int = 1, needs: Needs = "nothing", gpus: int = 0
) -> Case:
    """The case of a test. With the argument `single` it has one rank; with tf32 or a name of Apex it needs that."""
    values = set(arguments.values())
    if values & NAMES_APEX:
        needs = "extensions" if needs == "cuda" or "fused_sgd" in values else "apex"
    elif "tf32" in values and needs == "nothing":
        needs = "cuda"
    return Case(module, function, dict(arguments), 1 if "single" in values else ranks, needs, gpus)


def lacks(case: Case, device: str) -> str:
    """What a case needs and this machine does not have; empty if nothing is missing.

    On a CPU, Apex is its source in the folder that the variable APEX_SRC names.
    """
    here, of_apex = machine.read(), case.needs in ("apex", "extensions")
    if device == "cpu" and (case.needs == "nothing" or (case.needs == "apex" and os.environ.get("APEX_SRC"))):
        return ""
    if (visible := here.cuda_devices if device == "cuda" else 0) < max(1, case.gpus):
        gpus = f"{case.gpus} GPUs ({visible} visible)" if case.gpus > 1 else "a GPU"
        return f"needs {gpus}" + (" and Apex with its extensions" if of_apex else "")
    if case.needs == "compiler" and not here.compiler:
        return "needs a C++ compiler"
    return f"needs {validity.NO_APEX[here.apex]}" if of_apex and here.apex != "usable" else ""


def prove(case: Case, device: str) -> Result:
    """Run a case in fresh processes, or skip it. A warning in rank 0 fails it."""
    if reason := lacks(case, device):
        return {"outcome": "skipped", "reason": reason}
    began, limit = time.monotonic(), LIMIT_SECONDS[device]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files.write_json(folder / "case.json", asdict(case))
        codes = _run(device, case, folder, began + limit)
        seconds = time.monotonic() - began
        result: Result = {"seconds": round(seconds, 1)}
        if failed := [rank for rank, code in enumerate(codes) if code]:
            output = _output(folder, failed[0]).read_text().strip() or "it printed nothing"
            late = f"more than {limit} s; " if seconds >= limit else ""
            return {"outcome": "failed", "reason": late + output.splitlines()[-1], **result, "output": late + output}
        result |= json.loads((folder / "result.json").read_text())
        if result["warnings"]:
            return {"outcome": "failed", "reason": f"warned: {'; '.join(result['warnings'])}", **result}
        return {"outcome": "passed", **result}


def check_on_cpu(test: str, arguments: Mapping[str, str], ranks: int = 1, needs: Needs = "nothing") -> None:
    """Run the case of a test on the CPU: `test` is module::function of this folder. Fails with the reason."""
    module, function = test.split("::")
    result = prove(case(f"tests.gpu.{module}", function, arguments, ranks, needs), "cpu")
    assert result["outcome"] == "passed", result.get("output", result["reason"])


def _output(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.txt"


def _run(device: str, case: Case, folder: Path, deadline: float) -> list[int]:
    """The exit statuses of the ranks of FOLDER/case.json. Ranks that run at the deadline are killed."""
    environ = {**os.environ, **required_variables(1, True)}
    environ.pop("PYTHONOPTIMIZE", None)  # it removes assertions
    if device == "cpu" and case.needs == "apex":
        environ["PYTHONPATH"] = os.pathsep.join([environ["PYTHONPATH"], environ["APEX_SRC"]])
    if case.gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(case.gpus)))).split(",")
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[: case.gpus])
    processes = []
    for rank in range(case.ranks):
        command = [sys.executable, "-m", "tests.gpu.ranks", device, str(rank), str(folder)]
        with _output(folder, rank).open("w") as file:
            processes.append(subprocess.Popen(command, env=environ, cwd=PROJECT, stdout=file, stderr=subprocess.STDOUT))
    return [_exit_status(process, deadline) for process in processes]


def _exit_status(process: subprocess.Popen[bytes], deadline: float) -> int:
    """The exit status of a process. It is killed at the deadline."""
    try:
        return process.wait(max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def main(device: str, rank: str, folder: str) -> None:
    """Run one rank of a case. Rank 0 writes the figures and the warnings to FOLDER/result.json."""
    case = Case(**json.loads((Path(folder) / "case.json").read_text()))
    body = getattr(importlib.import_module(case.module), case.function)
    number = int(rank) if case.gpus else 0  # its number on this machine: the number of its GPU
    world = World(
        int(rank), number, case.ranks, torch.device("cuda", number) if device == "cuda" else torch.device("cpu")
    )
    begin(world, with_apex=case.needs == "apex")
    backend = backend_for(world.device, "auto" if case.gpus else "gloo")
    dist.init_process_group(
        backend, init_method=f"file://{folder}/meet", rank=world.rank, world_size=world.size,
        timeout=timedelta(seconds=LIMIT_SECONDS[device] / 2), device_id=world.device if backend == "nccl" else None,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("default")
        figures = body(world, **case.arguments)
    dist.destroy_process_group()
    if world.is_main:
        texts = sorted({f"{warning.category.__name__}: {warning.message}" for warning in messages})
        files.write_json(Path(folder) / "result.json", {"figures": figures, "warnings": texts})


if __name__ == "__main__":
    main(*sys.argv[1:])
