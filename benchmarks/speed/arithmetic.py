"""What train.arithmetic: portable costs: seconds of a training step against native, which take turns.

    python -m benchmarks arithmetic

One process and one thread on the CPU, fp32, SGD, batches of noise. The ratio depends on the CPU: portable does without
AVX-512, and MKL computes products of matrices with the instructions that every x86-64 CPU has. portable is measured in
both memory formats, native in the default one. Seconds are those of the CPU: with one thread they are the seconds of an
idle core, and another program changes them little.
"""

import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice

from benchmarks.harness import measuring
from benchmarks.harness.measuring import Report, Row, Worker
from pipeline.config.params import Arithmetic
from pipeline.learning.environment import required_variables

WAYS: dict[str, tuple[Arithmetic, str]] = {  # train.arithmetic, train.memory_format
    "native": ("native", "contiguous"),
    "portable": ("portable", "contiguous"),
    "channels_last": ("portable", "channels_last"),
}
RATIOS = {"ratio": "portable", "channels_last_ratio": "channels_last"}  # the name of a figure → the way over native


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


def worker(model: str, side: str, batch: str, memory_format: str) -> None:
    """Be a process: a turn takes some steps."""
    from benchmarks.speed import ours

    options = {"device": "cpu", "precision": "fp32", "memory_format": memory_format}
    steps = ours.steps_on_noise(model, int(batch), int(side), **options)

    def turn(count: int) -> Row:
        began = time.process_time()
        deque(islice(steps, count), maxlen=0)
        return {"seconds": (time.process_time() - began) / count}

    turn(2)  # the first choose algorithms, and fill caches
    measuring.serve(turn)


def measure(case: Case, turns: int) -> Row:
    """Seconds of a step in each way, and their ratios to native: medians over the turns, which alternate."""
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                Worker("benchmarks.speed.arithmetic", case.model, str(case.side), str(case.batch), memory_format,
                       env=required_variables(1, True, arithmetic))
            ) for name, (arithmetic, memory_format) in WAYS.items()
        }  # fmt: skip
        each = [{name: one.ask(count=case.steps)["seconds"] for name, one in workers.items()} for _ in range(turns)]
    seconds = [{f"{name}_seconds": value for name, value in turn.items()} for turn in each]
    ratios = [{name: turn[way] / turn["native"] for name, way in RATIOS.items()} for turn in each]
    return measuring.medians(seconds) | measuring.medians(ratios)


def main() -> None:
    options = measuring.parser(__doc__, "arithmetic", photos=False).parse_args()
    name = "tiny" if options.tiny else "cpu"
    report = Report("arithmetic", options, turns=TURNS[name])
    for case in CASES[name]:
        if report.missing([case.title]):
            report.add(case.title, measure(case, TURNS[name]))
    report.conclude(**{name: {title: row[name] for title, row in report.rows.items()} for name in RATIOS})
