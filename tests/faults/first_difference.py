"""Names the first step, then the operator, in which two trainings differ: on two machines, or with other params.

    python -m tests.faults.first_difference record 40 one.json        trains 40 steps, in the folder of a project
    python -m tests.faults.first_difference compare one.json other.json

`record` trains with one process, from the beginning, in a temporary folder with links to the project. Its file gets the
state after each step, and the calls of operators in the last step. `compare` names the step: record it in both places.
Then `compare` names the operator. With train.cuda_graphs a step calls no operator. Exit status: 1 for a difference.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.base import files
from pipeline.config import params
from pipeline.learning import chain, loop
from pipeline.running import variables
from pipeline.stages import train

WRITTEN = {"models", "metrics", "reports", "runs", "states"}  # by stages; a training would go on from runs/


def record(count: str, file: str) -> None:
    """Record so many steps of the project in this folder, in a new process."""
    variables.set_variables(params.load().train, params.load().train.arithmetic)
    with tempfile.TemporaryDirectory(prefix="first-difference-") as folder:
        for entry in (entry for entry in Path.cwd().iterdir() if entry.name not in WRITTEN):
            (Path(folder) / entry.name).symlink_to(entry)
        command = [sys.executable, "-m", "tests.faults.first_difference", "steps", count, str(Path(file).absolute())]
        subprocess.run(command, cwd=folder, check=True)


def take_steps(count: str, file: str) -> None:
    """Train in this folder. After so many steps the file is written, and this process ends."""
    rows, take = [], loop.train  # a row: what was called, and the SHA-256 before and after it

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            before = chain.sha256({"arguments": (args, kwargs)})
            result = func(*args, **(kwargs or {}))
            if "empty" not in str(func):  # else the result has no values yet
                rows.append((str(func), before, chain.sha256({"arguments": (args, kwargs), "result": result})))
            return result

    def recorded(
        learner: Any, parallel_model: Any, batches: Any, learning_rates: Any, totals: Any, begin: Any = None
    ) -> Any:
        for step, batch in enumerate(loop._exact_batches(batches, learner.precision), 1):
            with Recorder() if step == int(count) else nullcontext():  # type: ignore[no-untyped-call]
                next(take(learner, parallel_model, [batch], learning_rates, totals))
            rows.append((f"the state after step {step}", "", chain.sha256(learner.state_dict())))
            if step == int(count):
                files.write_json(Path(file), rows)
                os._exit(0)
            yield batch

    loop.train = recorded
    train.run(params.load())


def compare(first: str, second: str) -> None:
    """End with a line that names the first difference, or with status 0."""
    both = (json.loads(Path(name).read_bytes()) for name in (first, second))
    for one, other in zip_longest(*both, fillvalue=("the end", "", "")):
        if one != other:
            sys.exit(f"{one[0]}: {'other values' if one[:2] == other[:2] else f'other arguments, or {other[0]}'}")


if __name__ == "__main__":
    {"record": record, "steps": take_steps, "compare": compare}[sys.argv[1]](*sys.argv[2:])
