"""Images per second of our training, over the same training step with one batch that stays on the device.

    python -m benchmarks ceiling --device cuda
    python -m benchmarks ceiling --device cuda --rows "resnet50 256 bf16 graphs"    other cases, another report

1.00 means that the loader delays nothing; it says nothing about the step itself. Both streams feed the same model and
take turns, in one order and in the other. `host_ms` is the time of the host for one step: from an idle device until all
its work is issued. On a GPU, two processes that take turns also measure the cost of `train.deterministic: true`; with
--rows, those whose names end with `not deterministic`. `of_bound`: the least time of the step (`harness/bound.py`) over
the time of ours. The last rows are those of `planning`, on this machine.
"""

import gc
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row, Worker
from benchmarks.speed import planning
from pipeline.base.errors import Fault, UserError
from pipeline.checks import machine, validity
from pipeline.config import params
from pipeline.learning.environment import required_variables

APEX = params.APEX_LEVELS
FREELY = " not deterministic"
Case = dict[str, Any]  # params of train


@dataclass(frozen=True)
class Preset:
    images: int
    side: int  # of the drawn images
    packed_size: int  # of the packed ones
    turns: int
    seconds: float  # of a turn of each stream
    cases: tuple[Case, ...]
    both: tuple[Case, ...]  # the cases that also run with deterministic: false


def case(model: str, batch: int, precision: str, crop: int = 224, **others: Any) -> Case:
    return {"model": model, "batch_size": batch, "precision": precision, "crop": crop, **others}


GRAPHS: Case = {"cuda_graphs": True}
FAST: Case = {"memory_format": "channels_last"}
GPU_CASES = (
    *(case("resnet34", n, "bf16", **FAST, **graphs) for n in (64, 256) for graphs in ({}, GRAPHS)),
    *(case("resnet34", n, p) for n in (64, 256) for p in ("fp32", "tf32", "bf16", "fp16", "O1", "O2")),
    *(case(model, 256, "bf16") for model in ("resnet18", "resnet50")),
    case("resnet34", 256, "bf16", compile=True),
)
CPU_CASES = tuple(case("resnet18", 32, precision, 64) for precision in ("fp32", "bf16"))
TINY = (case("resnet18", 8, "fp32", 32),)
PRESETS = {
    "cuda": Preset(600, 240, 256, 15, 0.3, GPU_CASES, tuple(case("resnet34", 256, p) for p in ("bf16", "O1"))),
    "cpu": Preset(200, 96, 128, 15, 1.5, CPU_CASES, ()),
    "tiny": Preset(50, 48, 64, 1, 0.0, TINY, TINY),
}


OPTIONS: dict[str, Case] = {"channels_last": FAST, "graphs": GRAPHS, "compiled": {"compile": True}}


def title(case: Case) -> str:
    """A case's name in the report."""
    options = [name for name, setting in OPTIONS.items() if setting.items() <= case.items()]
    return " ".join([case["model"], str(case["batch_size"]), case["precision"], *options])


def parse(title: str) -> Case:
    """The case of a name: model, batch, precision, any of OPTIONS, and perhaps the side of the crops in pixels.

    Raises UserError for another word.
    """
    model, batch, precision, *others = title.split()
    settings: Case = {}
    for word in others:
        if word in OPTIONS:
            settings |= OPTIONS[word]
        elif word.isdigit():
            settings["crop"] = int(word)
        else:
            allowed = f"{', '.join(OPTIONS)}, or a number of pixels"
            raise UserError(Fault("--rows", word, "unknown", "no such option of a case", allowed))
    return case(model, int(batch), precision, **settings)


# ---------------------------------------------------------------- a process with one model


def worker(folder: str, device: str, deterministic: str) -> None:
    """Be a process. A turn takes steps of one case for some seconds: with our batches, then with one that stays."""
    import torch

    from benchmarks.harness import bound
    from benchmarks.speed import ours

    with ours.ready(Path(folder), device=device, deterministic=deterministic == "True") as ready:
        streams: dict[str, Iterator[Any]] = {}
        known: list[Any] = []
        work: list[bound.Work] = []
        name = torch.cuda.get_device_name() if device == "cuda" else ""

        def wait() -> None:
            if device == "cuda":
                torch.cuda.synchronize()

        def eager_step(settings: Case, batch: Any) -> None:
            """A step whose operators can be seen: neither compiled nor recorded."""
            eager = ready.having(**{**settings, "compile": False, "cuda_graphs": False})
            next(ours.Trainer.of(eager).steps(ours.resident(batch)))

        def begin(settings: Case) -> None:
            streams.clear()
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
            other = ready.having(**settings)
            batches = other.batches()
            batch = next(batches)
            work[:] = [bound.work(partial(eager_step, settings, batch))]
            trainer = ours.Trainer.of(other)
            streams.update(ours=trainer.steps(batches), resident=trainer.steps(ours.resident(batch)))
            for stream in streams.values():  # the first steps choose algorithms, compile, and fill caches
                deque(islice(stream, 3), maxlen=0)
            wait()

        def measure(stream: Iterator[Any], steps: int) -> tuple[float, float]:
            """Seconds per step, and seconds until the work of all steps was issued."""
            wait()
            began = time.perf_counter()
            deque(islice(stream, steps), maxlen=0)
            issued = time.perf_counter() - began
            wait()
            return (time.perf_counter() - began) / steps, issued

        def turn(case: Case, at_least: float, number: int) -> Row:
            if known != [case]:
                begin(case)
                known[:] = [case]
            one, host = measure(streams["ours"], 1)
            steps = max(2, math.ceil(at_least / one))
            order = list(streams)[:: -1 if number % 2 else 1]  # what warms up or cools down affects both
            seconds = {stream: measure(streams[stream], steps)[0] for stream in order}
            return {**seconds, "host": host, **bound.facts(work[0], seconds["ours"], name, case["precision"] == "tf32")}

        measuring.serve(turn)


def start_worker(folder: Path, device: str, deterministic: bool) -> Worker:
    """Start a process that trains in the folder."""
    arguments = (str(folder), device, str(deterministic))
    return Worker("benchmarks.speed.ceiling", *arguments, env=required_variables(1, deterministic))


# ---------------------------------------------------------------- the cases


def groups(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases that share a process. An Apex case has its own, because Apex patches torch until the process ends."""
    native, apex = ([one for one in cases if (one["precision"] in APEX) is needed] for needed in (False, True))
    return [native, *([one] for one in apex)]


def measure(group: list[Case], preset: Preset, folder: Path, device: str, report: Report) -> None:
    """Add a row for each case; for those in `preset.both` a second without `deterministic`, with the cost of it."""
    with start_worker(folder, device, True) as strict:
        for one in group:
            if report.missing([title(one)]):
                report.add(title(one), row(one, race([strict], one, preset)[0]))
            if one in preset.both and report.missing([title(one) + FREELY]):
                with start_worker(folder, device, False) as free:
                    turns = race([strict, free], one, preset)
                on, off = map(measuring.medians, turns)
                report.add(title(one) + FREELY, {**row(one, turns[1]), "cost": on["ours"] / off["ours"] - 1})


def race(workers: list[Worker], one: Case, preset: Preset) -> list[list[Row]]:
    """The turns of each worker. The first turn builds the model and is not counted."""
    for worker in workers:
        worker.ask(case=one, at_least=0.0, number=0)
    turns: list[list[Row]] = [[] for _ in workers]
    for number in range(preset.turns):
        for worker, done in zip(workers, turns, strict=True):
            done.append(worker.ask(case=one, at_least=preset.seconds, number=number))
    return turns


def row(one: Case, turns: list[Row]) -> Row:
    """Images per second of both streams, their ratio, and milliseconds per step."""
    middle = measuring.medians([{**turn, "share": turn["resident"] / turn["ours"]} for turn in turns])
    return {
        "ours": one["batch_size"] / middle["ours"],
        "resident": one["batch_size"] / middle["resident"],
        "share": middle["share"],
        "host_ms": 1e3 * middle["host"],
        "step_ms": 1e3 * middle["ours"],
        **{name: middle[name] for name in ("bound_ms", "of_bound") if name in middle},
    }


def main() -> None:
    parser = measuring.parser(__doc__, "ceiling")
    parser.add_argument("--without", default="no such row", help="leave out the rows whose names contain this")
    parser.add_argument("--rows", nargs="+", help="other cases than those of the device, by name; see profile --help")
    options = parser.parse_args()
    preset = PRESETS[measuring.preset(options)]
    if options.rows:
        cases, both = (
            tuple(parse(name.removesuffix(FREELY)) for name in options.rows if name.endswith(ending))
            for ending in ("", FREELY)
        )
        preset = replace(preset, cases=cases, both=both)
    with workspace.temporary_folder("ceiling") as base:
        photos = workspace.photos(options, base, preset.images, preset.side)
        report = Report("ceiling_rows" if options.rows else "ceiling", options, **photos.facts)
        cases = tuple(one for one in preset.cases if options.without not in title(one))
        preset = left_out(replace(preset, cases=cases), report)
        missing = report.missing([*map(title, preset.cases), *(title(one) + FREELY for one in preset.both)])
        if missing:
            training = {"train": {"epochs": 1000, "lr": 0.001}}
            packed_size = {"prepare": {"size": preset.packed_size}}
            changes = (workspace.ONE_PROCESS, packed_size, training, photos.params)
            workspace.create_prepared(base / "copy", *changes, store=options.store)
        for group in groups(preset.cases):
            if any(name.removesuffix(FREELY) in map(title, group) for name in missing):
                measure(group, preset, base / "copy", options.device, report)
        planning.measure(preset.turns, report)
        rows = report.rows
        report.conclude(
            share={name: row["share"] for name, row in rows.items() if "share" in row and "cost" not in row},
            of_bound={name: row["of_bound"] for name, row in rows.items() if "of_bound" in row},
            cost_of_deterministic={name: row["cost"] for name, row in rows.items() if "cost" in row},
            planning_ms={name: row["plan_ms"] for name, row in rows.items() if "plan_ms" in row},
        )


def left_out(preset: Preset, report: Report) -> Preset:
    """The preset without the cases that need Apex or a compiler, where it is missing. The report names them."""
    here = machine.read()

    def reason(one: Case) -> str:
        if one["precision"] in APEX and here.apex != "usable":
            return f"needs {validity.NO_APEX[here.apex]}"
        return "needs a C++ compiler" if one.get("compile", False) and not here.compiler else ""

    for one in preset.cases:
        if missing := reason(one):
            report.leave_out(title(one), missing)
    cases, both = (tuple(one for one in cases if not reason(one)) for cases in (preset.cases, preset.both))
    return replace(preset, cases=cases, both=both)
