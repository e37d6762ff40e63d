"""2. Our training, images a second, over what the very same step does when it is fed one batch that never changes.

    python -m benchmarks ceiling --device cuda

1.00 means that the model never waits for images. Both streams feed the same model, and take turns. On a GPU also what
the host needs for a step (from the device being idle to everything being issued), and, model by model in two processes
that take turns, the price of `train.deterministic: true`.
"""

import gc
import math
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row, Worker
from pipeline.config import machine, params, validity
from pipeline.engine.environment import required_variables

APEX = params.APEX_LEVELS
FREELY = " not deterministic"
Case = dict[str, Any]  # params of train


@dataclass(frozen=True)
class Form:
    images: int
    side: int  # of the drawn images
    packed_size: int  # of the packed ones
    turns: int
    seconds: float  # that a turn of each stream lasts
    cases: tuple[Case, ...]
    both: tuple[Case, ...]  # those also run with deterministic: false


def case(model: str, batch: int, precision: str, crop: int = 224, **others: Any) -> Case:
    return {"model": model, "batch_size": batch, "precision": precision, "crop": crop, **others}


GPU_CASES = (
    *(case("resnet34", n, p) for n in (64, 256) for p in ("fp32", "tf32", "bf16", "fp16", "O1", "O2")),
    *(case(model, 256, "bf16") for model in ("resnet18", "resnet50")),
    case("resnet34", 256, "bf16", compile=True),
)
CPU_CASES = tuple(case("resnet18", 32, precision, 64) for precision in ("fp32", "bf16"))
TINY = (case("resnet18", 8, "fp32", 32),)
FORMS = {
    "cuda": Form(600, 240, 256, 5, 0.5, GPU_CASES, tuple(case("resnet34", 256, p) for p in ("bf16", "O1"))),
    "cpu": Form(200, 96, 128, 7, 1.5, CPU_CASES, ()),
    "tiny": Form(50, 48, 64, 1, 0.0, TINY, TINY),
}


def title(case: Case) -> str:
    """A case's name in the report."""
    return f"{case['model']} {case['batch_size']} {case['precision']}{' compiled' * case.get('compile', False)}"


# ---------------------------------------------------------------- a process with one model


def worker(folder: Path, device: str, deterministic: bool) -> None:
    """Be a process: a turn takes steps of a case, fed by our batches and by one that stays, each for some seconds."""
    import torch

    from benchmarks.speed import ours

    with ours.ready(folder, device=device, deterministic=deterministic) as ready:
        streams: dict[str, Iterator[Any]] = {}
        known: list[Any] = []

        def wait() -> None:
            if device == "cuda":
                torch.cuda.synchronize()

        def begin(settings: Case) -> None:
            streams.clear()
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
            mine = ready.having(**settings)
            trainer = ours.Trainer.of(mine)
            batches = mine.batches(trainer.recipe.precision)
            batch = next(batches)
            streams.update(ours=trainer.steps(batches), resident=trainer.steps(ours.resident(batch)))
            for stream in streams.values():  # the first steps choose algorithms, compile, and fill caches
                deque(islice(stream, 3), maxlen=0)
            wait()

        def timed(stream: Iterator[Any], steps: int) -> tuple[float, float]:
            """Seconds a step, and those until its work was issued if there is but one."""
            wait()
            began = time.perf_counter()
            deque(islice(stream, steps), maxlen=0)
            issued = time.perf_counter() - began
            wait()
            return (time.perf_counter() - began) / steps, issued

        def turn(case: Case, seconds: float) -> Row:
            if known != [case]:
                begin(case)
                known[:] = [case]
            one, host = timed(streams["ours"], 1)
            steps = max(2, math.ceil(seconds / one))
            found = {name: timed(stream, steps)[0] for name, stream in streams.items()}
            return {**found, "host": host}

        measuring.serve(turn)


@dataclass(frozen=True)
class Place:
    """Where it is measured."""

    folder: Path
    device: str

    def worker(self, deterministic: bool) -> Worker:
        """A process there."""
        arguments = (str(self.folder), self.device, str(int(deterministic)))
        return Worker("benchmarks.speed.ceiling", *arguments, env=required_variables(1, deterministic))


# ---------------------------------------------------------------- the cases


def groups(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases that share a process: all but those of Apex, which patches torch for as long as a process lives."""
    native, apex = ([one for one in cases if (one["precision"] in APEX) is needed] for needed in (False, True))
    return [native, *([one] for one in apex)]


def measure(group: list[Case], form: Form, place: Place, report: Report) -> None:
    """A row for every case of a group, and for those of `form.both` another without `deterministic`, with its price."""
    with place.worker(True) as strict:
        for one in group:
            if report.missing([title(one)]):
                report.add(title(one), row(one, race([strict], one, form)[0]))
            if one in form.both and report.missing([title(one) + FREELY]):
                with place.worker(False) as free:
                    turns = race([strict, free], one, form)
                on, off = (measuring.medians(found) for found in turns)
                report.add(title(one) + FREELY, {**row(one, turns[1]), "price": on["ours"] / off["ours"] - 1})


def race(workers: list[Worker], one: Case, form: Form) -> list[list[Row]]:
    """The turns of each process; the first, in which a model is made, is not counted."""
    for worker in workers:
        worker.ask(case=one, seconds=0.0)
    turns: list[list[Row]] = [[] for _ in workers]
    for _ in range(form.turns):
        for worker, found in zip(workers, turns, strict=True):
            found.append(worker.ask(case=one, seconds=form.seconds))
    return turns


def row(one: Case, turns: list[Row]) -> Row:
    """Images a second of both streams, their ratio, and the host's milliseconds of a step."""
    middle = measuring.medians([{**turn, "share": turn["resident"] / turn["ours"]} for turn in turns])
    return {
        "ours": one["batch_size"] / middle["ours"],
        "resident": one["batch_size"] / middle["resident"],
        "share": middle["share"],
        "host_ms": 1e3 * middle["host"],
        "step_ms": 1e3 * middle["ours"],
    }


def main() -> int:
    options = measuring.parser(__doc__, "ceiling").parse_args()
    form = FORMS[measuring.form(options)]
    with measuring.refusals("ceiling"), tempfile.TemporaryDirectory(prefix="ceiling-") as temporary:
        base = Path(temporary).resolve()
        photos = workspace.photos(options, base, form.images, form.side)
        report = Report("ceiling", options, photos=photos.words, sha256=photos.sha256)
        form = left_out(form, report)
        place = Place(base / "copy", options.device)
        missing = report.missing([*map(title, form.cases), *(title(one) + FREELY for one in form.both)])
        if missing:
            training = {"train": {"epochs": 1000, "lr": 0.001}}
            packed_size = {"prepare": {"size": form.packed_size}}
            workspace.prepared(place.folder, workspace.ONE_PROCESS, packed_size, training, photos.params)
        for group in groups(form.cases):
            if any(name.removesuffix(FREELY) in map(title, group) for name in missing):
                measure(group, form, place, report)
        rows = report.rows
        report.conclude(
            share={name: row["share"] for name, row in rows.items() if "price" not in row},
            price_of_deterministic={name: row["price"] for name, row in rows.items() if "price" in row},
        )
    return 0


def left_out(form: Form, report: Report) -> Form:
    """The form without what needs Apex or a compiler, where it cannot be had; the report names it."""
    here = machine.read()

    def reason(one: Case) -> str:
        if one["precision"] in APEX and here.apex != "usable":
            return f"needs {validity.NO_APEX[here.apex]}"
        return "needs a C++ compiler" if one.get("compile", False) and not here.compiler else ""

    for one in form.cases:
        if said := reason(one):
            report.leave_out(title(one), said)
    cases, both = (tuple(one for one in cases if not reason(one)) for cases in (form.cases, form.both))
    return replace(form, cases=cases, both=both)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "1")
    else:
        sys.exit(main())
