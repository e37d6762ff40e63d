"""Images a second and the most GPU memory of a training step, for every precision and for FusedSGD.

    python -m benchmarks steps --device cuda

ResNet-34 on 64 images of 224 × 224 pixels, as deterministic as training is by default. One batch of noise stays on the
device: the benchmark measures the step, not the loading. One process per row, because Apex O1 patches torch for the
life of a process. A figure is the median of the turns; the first steps are not counted.
"""

import time
from collections import deque
from dataclasses import dataclass
from itertools import islice

from benchmarks.harness import measuring
from benchmarks.harness.measuring import Report, Row, Worker
from pipeline.checks import machine, validity
from pipeline.config import params
from pipeline.learning.environment import required_variables

NATIVE = ("fp32", "tf32", "bf16", "fp16")
Case = tuple[str, str]  # precision, optimizer


@dataclass(frozen=True)
class Preset:
    model: str
    batch: int
    side: int  # of the images
    turns: int
    steps: int  # of a turn
    cases: tuple[Case, ...]


EVERY = (*((precision, "sgd") for precision in (*NATIVE, *params.APEX_LEVELS)), ("fp16", "fused_sgd"))
PRESETS = {
    "cuda": Preset("resnet34", 64, 224, 3, 20, EVERY),
    "cpu": Preset("resnet18", 32, 64, 5, 5, (("fp32", "sgd"), ("bf16", "sgd"))),
    "tiny": Preset("shufflenet_v2_x0_5", 4, 32, 1, 1, (("fp32", "sgd"), ("fp16", "fused_sgd"))),
}


def worker(device: str, name: str, precision: str, optimizer: str) -> None:
    """Be a process: a turn takes some steps of a case. `name`: that of the preset."""
    import torch

    from benchmarks.speed import ours

    preset, options = PRESETS[name], {"device": device, "precision": precision, "optimizer": optimizer}
    steps = ours.steps_on_noise(preset.model, preset.batch, preset.side, **options)

    def take(count: int) -> None:
        deque(islice(steps, count), maxlen=0)
        if device == "cuda":
            torch.cuda.synchronize()

    def turn(count: int) -> Row:
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        take(count)
        seconds = time.perf_counter() - began
        memory = torch.cuda.max_memory_allocated() / 1e6 if device == "cuda" else 0.0
        return {"images_per_s": count * preset.batch / seconds, "gpu_memory_mb": memory}

    take(5)  # the first choose algorithms, and fill caches
    measuring.serve(turn)


def lacks(case: Case) -> str:
    """What a case needs and this machine has not, or nothing."""
    needs_apex = case[0] in params.APEX_LEVELS or case[1] == "fused_sgd"
    apex = machine.read().apex
    return f"needs {validity.NO_APEX[apex]}" if needs_apex and apex != "usable" else ""


def measure(preset: Preset, case: Case, name: str, device: str) -> Row:
    """A case in a process of its own."""
    with Worker("benchmarks.speed.steps", device, name, *case, env=required_variables(1, True)) as worker:
        middle = measuring.medians([worker.ask(count=preset.steps) for _ in range(preset.turns)])
    return {figure: middle[figure] for figure in ("images_per_s", "gpu_memory_mb")}


def main() -> None:
    options = measuring.parser(__doc__, "steps", photos=False).parse_args()
    name = measuring.preset(options)
    preset = PRESETS[name]
    report = Report("steps", options, model=preset.model, batch=preset.batch, side=preset.side)
    for case in preset.cases:
        title = " ".join(case)
        if reason := lacks(case):
            report.leave_out(title, reason)
        elif report.missing([title]):
            report.add(title, measure(preset, case, name, options.device))
    rates = {title: row["images_per_s"] for title, row in report.rows.items()}
    report.conclude(times_fp32={title: rate / rates["fp32 sgd"] for title, rate in rates.items()})
