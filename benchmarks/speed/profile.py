"""Where the time of a training step goes on a GPU: its kernels by kind, and the gaps between them.

    python -m benchmarks profile --device cuda --rows "resnet34 256 bf16 channels_last graphs"
    python -m benchmarks profile --device cuda --limits 0.9 0.8      with less memory than the step has used

One batch of noise stays on the device, as in `steps`. Each row is a process of its own. `kernels`: the SHA-256 of the
names of a step's kernels, in their order; `state`: that of the whole state after TAKEN steps. Two rows with other
kernels may have other bytes. A row with a limit has a share of the memory that the same row without one has reserved:
libraries may then choose other kernels, because a workspace does not fit.
"""

import hashlib
import re
from collections import deque
from itertools import islice
from typing import Any

from benchmarks.harness import measuring
from benchmarks.harness.measuring import Report, Row, Worker
from benchmarks.speed import ceiling
from pipeline.learning.environment import required_variables

TAKEN, PROFILED = 10, 5  # steps before the profile, and in it
LISTED = 15  # kernels that a row names
# The first pattern that is in a kernel's name decides.
KINDS = {
    "copies": r"Memcpy|Memset",
    "layout": r"nchwToNhwc|nhwcToNchw|transpose|tensorTransform",
    "BatchNorm": r"batch_?norm|bn_(fw|bw)|BatchNorm|nhwc_batch",
    "pooling": r"pool",
    "optimizer": r"multi_tensor|FusedSgd|fused_sgd|sgd",
    "products": r"gemm|conv|xmma|cutlass|wgrad|dgrad|fprop|implicit|cudnn|nvjet|gemv|splitK",
    "elementwise": r"elementwise|vectorized|triton_poi",
    "sums": r"reduce|softmax|triton_red|triton_per",
}
TINY = ("shufflenet_v2_x0_5 4 fp32",)
PRESETS = {
    "cuda": (
        "resnet34 256 bf16 channels_last graphs", "resnet34 256 fp16 channels_last graphs",
        "resnet18 64 bf16 channels_last graphs 96",
    ),
    "cpu": ("resnet18 32 fp32 64",),
    "tiny": TINY,
}  # fmt: skip


def kind(name: str) -> str:
    """The kind of a kernel, by its name."""
    return next((each for each, pattern in KINDS.items() if re.search(pattern, name)), "other")


def worker(device: str, title: str, memory_mb: str) -> None:
    """Be a process: a turn profiles some steps of the case `title`, with at most so much GPU memory; 0: all of it."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity

    from benchmarks.harness import bound
    from benchmarks.speed import ours
    from pipeline.learning import chain

    one = ceiling.parse(title)
    cuda = device == "cuda"
    if float(memory_mb):
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(float(memory_mb) * 1e6 / total)
    model, batch, side = (one.pop(name) for name in ("model", "batch_size", "crop"))
    trainer, batches = ours.on_noise(model, batch, side, device=device, **one)
    steps = trainer.steps(batches)

    def take(count: int) -> None:
        deque(islice(steps, count), maxlen=0)
        if cuda:
            torch.cuda.synchronize()

    def turn() -> Row:
        take(TAKEN)
        state = chain.sha256(trainer.learner.state_dict())[:12]
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profile:
            take(PROFILED)
        wanted = DeviceType.CUDA if cuda else DeviceType.CPU
        events: Any = sorted(
            (event for event in profile.events() or () if event.device_type == wanted),
            key=lambda event: event.time_range.start,
        )
        spans = [(event.time_range.start, event.time_range.end) for event in events]
        seconds: dict[str, float] = {}
        kinds = dict.fromkeys([*KINDS, "other"], 0.0)
        for event in events:
            took = (event.time_range.end - event.time_range.start) / 1e3 / PROFILED
            seconds[event.name] = seconds.get(event.name, 0.0) + took
            kinds[kind(event.name)] += took
        whole = (max(end for _, end in spans) - spans[0][0]) / 1e3 / PROFILED
        names = "\n".join(event.name for event in events[: len(events) // PROFILED])
        dearest = sorted(seconds.items(), key=lambda item: -item[1])[:LISTED]
        return {
            "step_ms": whole,
            "gaps_ms": whole - bound.union(spans) / 1e3 / PROFILED,
            **{f"{name}_ms": value for name, value in kinds.items()},
            "launched": len(events) // PROFILED,
            "reserved_mb": torch.cuda.max_memory_reserved() / 1e6 if cuda else 0.0,
            "kernels": hashlib.sha256(names.encode()).hexdigest()[:12],
            "state": state,
            "dearest": [[name[:160], value] for name, value in dearest],
        }

    measuring.serve(turn)


def measure(title: str, device: str, memory_mb: float = 0.0) -> Row:
    """A case in a process of its own."""
    with Worker("benchmarks.speed.profile", device, title, str(memory_mb), env=required_variables(1, True)) as process:
        row = process.ask()
    del row["cpu_seconds"]
    return row


def main() -> None:
    parser = measuring.parser(__doc__, "profile", photos=False)
    parser.add_argument("--rows", nargs="+", help="cases, such as 'resnet34 64 fp16 channels_last graphs 224'")
    parser.add_argument("--limits", nargs="+", type=float, default=[], help="shares of the memory, for the first case")
    options = parser.parse_args()
    titles = options.rows or PRESETS[measuring.preset(options)]
    report = Report("profile", options)
    for title in report.missing(titles):
        report.add(title, measure(title, options.device))
    for share in options.limits:
        name = f"{titles[0]}, {share:g} of its memory"
        if report.missing([name]):
            try:
                report.add(name, measure(titles[0], options.device, share * report.rows[titles[0]]["reserved_mb"]))
            except RuntimeError as error:
                report.leave_out(name, str(error).splitlines()[-1])
    report.conclude()
