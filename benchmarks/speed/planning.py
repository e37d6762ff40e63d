"""CPU time to plan a training step, in milliseconds: one step at a time, and several together.

    python -m benchmarks planning

A plan has row numbers and random parameters, with the augmentations of params.yaml. On a GPU a thread makes it, which
shares the interpreter with the one that starts the kernels. The images are noise.
"""

import statistics
import time
from collections import deque
from itertools import islice

from benchmarks.harness import measuring
from benchmarks.harness.measuring import Report
from pipeline.config import params

BATCHES = (64, 256)  # images of a global batch
STEPS = 400  # of a turn
TURNS = {"cpu": 15, "cuda": 15, "tiny": 1}


def measure(turns: int, report: Report) -> None:
    """Add a row for each size of a batch and each number of steps that are planned together."""
    import torch

    from benchmarks.speed import ours
    from pipeline.loader import batches
    from pipeline.loader.sampler import Share

    dataset = ours.noise(3000, 4, 5, torch.device("cpu"))
    cases = {f"plans {size}, {steps} at once": (size, steps) for size in BATCHES for steps in (1, batches.AT_ONCE)}
    missing = report.missing(cases)
    milliseconds: dict[str, list[float]] = {name: [] for name in missing}
    for name in missing * turns:
        size, steps = cases[name]
        settings = params.load().train.model_copy(update={"batch_size": size, "epochs": 1000})
        plans = batches.plans(dataset, settings, Share(range(1), 1), 0, steps)
        next(plans)
        began = time.thread_time()
        deque(islice(plans, STEPS), maxlen=0)
        milliseconds[name].append(1e3 * (time.thread_time() - began) / STEPS)
    for name in missing:
        report.add(name, {"plan_ms": statistics.median(milliseconds[name])})


def main() -> None:
    options = measuring.parser(__doc__, "planning", photos=False).parse_args()
    report = Report("planning", options)
    measure(TURNS[measuring.preset(options)], report)
    report.conclude(planning_ms={name: row["plan_ms"] for name, row in report.rows.items()})
