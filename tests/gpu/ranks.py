"""Run a test's body in new processes, one per rank: `python -m tests.gpu.ranks DEVICE RANK FOLDER` is one of them.

New processes, because Apex O1 patches torch until the process ends. Two ranks share the one GPU and exchange over gloo:
NCCL refuses two ranks on one GPU.
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
from pipeline.config import machine, params, validity
from pipeline.engine.environment import required_variables
from pipeline.engine.world import World
from tests.gpu.training import begin
from tests.helpers import starts

PROJECT = Path(__file__).resolve().parents[2]
Needs = Literal["nothing", "cuda", "compiler", "apex"]
Result = dict[str, Any]  # outcome (passed, failed, skipped), reason, figures, warnings, seconds, output
LIMIT_SECONDS = {"cuda": 300, "cpu": 600}  # on a GPU a case takes 15 s; one compiles twice, for minutes
NAMES_APEX = {*params.APEX_LEVELS, "apex", "apex_ddp", "fused_sgd"}


@dataclass(frozen=True)
class Case:
    """A test with its arguments: the function of every rank, the number of ranks, and what they need."""

    module: str
    function: str
    arguments: Mapping[str, str]
    ranks: int
    needs: Needs


def case(module: str, function: str, arguments: Mapping[str, str], ranks: int = 1, needs: Needs = "nothing") -> Case:
    """The case of a test. With the argument `single` it has one rank; with tf32 or a name of Apex it needs that."""
    chosen = set(arguments.values())
    if chosen & NAMES_APEX:
        needs = "apex"
    elif "tf32" in chosen and needs == "nothing":
        needs = "cuda"
    return Case(module, function, dict(arguments), 1 if "single" in chosen else ranks, needs)


def lacks(needs: Needs, device: str) -> str:
    """What a case needs and this machine does not have; empty if nothing is missing."""
    here = machine.read()
    if needs == "nothing" and device == "cpu":
        return ""
    if device == "cpu" or here.cuda_devices == 0:
        return "needs a GPU" + (" and Apex with its extensions" if needs == "apex" else "")
    if needs == "compiler" and not here.compiler:
        return "needs a C++ compiler"
    return f"needs {validity.NO_APEX[here.apex]}" if needs == "apex" and here.apex != "usable" else ""


def prove(case: Case, device: str) -> Result:
    """Run a case in fresh processes, or skip it. A warning in rank 0 fails it."""
    if reason := lacks(case.needs, device):
        return {"outcome": "skipped", "reason": reason}
    started, limit = time.monotonic(), LIMIT_SECONDS[device]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files.write_json(folder / "case.json", asdict(case))
        codes = _run(device, case.ranks, folder, started + limit)
        seconds = time.monotonic() - started
        result: Result = {"seconds": round(seconds, 1)}
        if failed := [rank for rank, code in enumerate(codes) if code]:
            output = _output(folder, failed[0]).read_text().strip() or "it printed nothing"
            late = f"more than {limit} s; " if seconds >= limit else ""
            return {"outcome": "failed", "reason": late + output.splitlines()[-1], **result, "output": late + output}
        result |= json.loads((folder / "result.json").read_text())
        if result["warnings"]:
            return {"outcome": "failed", "reason": f"warned: {'; '.join(result['warnings'])}", **result}
        return {"outcome": "passed", **result}


def _output(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.txt"


def _run(device: str, ranks: int, folder: Path, deadline: float) -> list[int]:
    """The exit statuses of the ranks of FOLDER/case.json. Ranks that run at the deadline are killed."""
    environ = {**os.environ, **required_variables(1, True)}
    environ.pop("PYTHONOPTIMIZE", None)  # it removes assertions
    if device == "cuda":
        environ["PERENNIAL_REAL_STARTS"] = "1"
    processes = []
    for rank in range(ranks):
        command = [sys.executable, "-m", "tests.gpu.ranks", device, str(rank), str(folder)]
        with _output(folder, rank).open("w") as file:
            processes.append(starts.Popen(command, env=environ, cwd=PROJECT, stdout=file, stderr=subprocess.STDOUT))
    return [_ended(process, deadline) for process in processes]


def _ended(process: subprocess.Popen[str], deadline: float) -> int:
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
    world = World(int(rank), 0, case.ranks, torch.device("cuda", 0) if device == "cuda" else torch.device("cpu"))
    begin(world)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=world.rank, world_size=world.size,
        timeout=timedelta(seconds=LIMIT_SECONDS[device] / 2),
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        figures = body(world, **case.arguments)
    dist.destroy_process_group()
    if world.is_main:
        texts = sorted({f"{warning.category.__name__}: {warning.message}" for warning in caught})
        files.write_json(Path(folder) / "result.json", {"figures": figures, "warnings": texts})


if __name__ == "__main__":
    main(*sys.argv[1:])
