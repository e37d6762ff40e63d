"""What train.arithmetic: portable costs: seconds of a training step against native, which take turns.

    python -m benchmarks arithmetic

One process and one thread on the CPU, fp32, SGD, batches of noise. The ratio depends on the CPU: portable does without
AVX-512, and MKL computes products of matrices with the instructions that every x86-64 CPU has.
"""

import sys
import time
from collections import deque
from dataclasses import dataclass
from itertools import islice

from benchmarks.harness import measuring
from benchmarks.harness.measuring import Report, Row, Worker
from pipeline.__main__ import set_up_interpreter
from pipeline.base import linux
from pipeline.config import params
from pipeline.config.params import Arithmetic
from pipeline.engine.environment import required_variables

BOTH: tuple[Arithmetic, ...] = ("native", "portable")


@dataclass(frozen=True)
class Case:
    model: str
    side: int  # of the images, in pixels
    batch: int
    steps: int  # of a turn

    @property
    def title(self) -> str:
        return f"{self.model} {self.side} px"


CASES = {
    "cpu": (
        Case("resnet18", 64, 32, 6), Case("resnet34", 64, 32, 4), Case("resnet18", 224, 16, 2),
        Case("resnet34", 224, 16, 1), Case("mobilenet_v3_small", 224, 16, 3), Case("vit_b_32", 224, 8, 1),
    ),
    "tiny": (Case("shufflenet_v2_x0_5", 32, 4, 1),),
}  # fmt: skip
TURNS = {"cpu": 9, "tiny": 1}


def worker(case: Case) -> None:
    """Be a process: a turn takes some steps."""
    from benchmarks.speed import ours
    from pipeline.engine import determinism
    from pipeline.engine.world import World

    set_up_interpreter()  # these two as a stage does
    linux.keep_freed_memory()
    settings = {
        "device": "cpu", "parallel": "single", "model": case.model, "batch_size": case.batch, "crop": case.side,
        "precision": "fp32", "epochs": 1000, "lr": 0.001,
    }  # fmt: skip
    config = ours.changed(params.load(), settings)
    determinism.make_deterministic(config.train.threads, config.train.deterministic)
    ready = ours.Ready.of_noise(config, World.from_env({}, "cpu"), case.batch, case.side)
    steps = ours.Trainer.of(ready).steps(ours.resident(next(ready.batches())))

    def turn(count: int) -> Row:
        began = time.perf_counter()
        deque(islice(steps, count), maxlen=0)
        return {"seconds": (time.perf_counter() - began) / count}

    turn(2)  # the first choose algorithms, and fill caches
    measuring.serve(turn)


def measure(case: Case, turns: int) -> Row:
    """Seconds of a step with both, and their ratio: medians over the turns, which alternate."""
    native, portable = (
        Worker("benchmarks.speed.arithmetic", case.model, str(case.side), str(case.batch), str(case.steps),
               env=required_variables(1, True, how)) for how in BOTH
    )  # fmt: skip
    with native, portable:
        each = [[worker.ask(count=case.steps)["seconds"] for worker in (native, portable)] for _ in range(turns)]
    middle = measuring.medians([{"native": n, "portable": p, "ratio": p / n} for n, p in each])
    return {f"{name}_seconds" if name != "ratio" else name: value for name, value in middle.items()}


def main() -> int:
    options = measuring.parser(__doc__, "arithmetic", photos=False).parse_args()
    name = "tiny" if options.tiny else "cpu"
    with measuring.exit_on_user_error("arithmetic"):
        report = Report("arithmetic", options, turns=TURNS[name])
        for case in CASES[name]:
            if report.missing([case.title]):
                report.add(case.title, measure(case, TURNS[name]))
        report.conclude(ratio={title: row["ratio"] for title, row in report.rows.items()})
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(Case(sys.argv[2], *map(int, sys.argv[3:6])))
    else:
        sys.exit(main())
