"""Every way to train on several devices: seconds per epoch.

    python -m benchmarks ways --device cuda

Each way is a real run of the train stage, twice; the ways take turns. An epoch is from the end of one validation to the
end of the next; the first is not counted. The global batch is the same for all.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report
from pipeline.base.errors import Fault, UserError
from pipeline.checks import machine, validity
from pipeline.config import params


class Way(NamedTuple):
    """Values of params.yaml."""

    parallel: str
    launcher: str = "torchrun"
    sync_bn: str = "none"
    cuda_graphs: bool = False


Case = tuple[Way, int]  # a way, and the number of devices
WAYS = (
    Way("single"),
    Way("dp"),
    Way("ddp"),
    Way("ddp", "spawn"),
    Way("ddp", sync_bn="torch"),
    Way("apex_ddp"),
    Way("apex_ddp", sync_bn="apex"),
    Way("elastic"),
    Way("elastic", cuda_graphs=True),
)
ALONE = ("single", "dp")  # these have one process, also on several devices


@dataclass(frozen=True)
class Preset:
    images: int
    side: int  # of the drawn images
    packed_size: int  # of the packed ones
    epochs: int
    turns: int
    train: dict[str, Any]
    ways: tuple[Way, ...] = WAYS


SMALL = {"model": "resnet18", "batch_size": 32, "crop": 64, "eval_crop": 64, "eval_resize": 64}
PRESETS = {
    "cuda": Preset(1500, 240, 256, 4, 2, {"model": "resnet34", "batch_size": 64, "precision": "fp16"}),
    "cpu": Preset(160, 96, 64, 2, 2, SMALL),
    "tiny": Preset(60, 48, 32, 2, 1, {**SMALL, "batch_size": 16, "crop": 32}, WAYS[:4:3]),
}


def title(way: Way) -> str:
    """A way's name in the report."""
    launcher = f" by {way.launcher}" * (way.parallel not in ALONE)
    sync_bn = f", SyncBN of {way.sync_bn}" * (way.sync_bn != "none")
    return f"{way.parallel}{launcher}{sync_bn}" + ", graphs" * way.cuda_graphs


def changes(way: Way, devices: int) -> workspace.Changes:
    """The way as params."""
    processes = 1 if way.parallel in ALONE else devices
    train = {"parallel": way.parallel, "sync_bn": way.sync_bn, "cuda_graphs": way.cuda_graphs}
    return {"train": train, "run": {"launcher": way.launcher, "processes": processes}}


def reason_against(folder: Path, way: Way, devices: int) -> str:
    """Why a way cannot run here; empty if it can."""
    workspace.set_params(folder, changes(way, devices))
    return str(next(iter(validity.faults(params.load(folder / "params.yaml"), machine.read())), ""))


def run(folder: Path, way: Way, devices: int) -> list[float]:
    """Train once: seconds of each epoch except the first."""
    workspace.set_params(folder, changes(way, devices))
    workspace.run_stage(folder, "train")
    ends = workspace.ends_of_epochs(folder)
    workspace.forget_runs(folder)
    return [after - end for end, after in pairwise(ends)]


def measure(name: str, options: argparse.Namespace, cases: Mapping[str, Case], **about: Any) -> Report:
    """The report of a benchmark with the seconds per epoch of each case (by title) that this machine can run.

    `about`: other conditions, as for Report. Raises UserError if it can run none, and as `workspace.photos` and Report
    do.
    """
    preset = PRESETS[measuring.preset(options)]
    with workspace.temporary_folder(name) as base:
        photos = workspace.photos(options, base, preset.images, preset.side)
        report = Report(name, options, **photos.facts, **about, **preset.train)
        training = {"train": {"device": options.device, **preset.train, "epochs": preset.epochs}}
        workspace.create(
            base / "copy", workspace.ONE_PROCESS, {"prepare": {"size": preset.packed_size}}, training, photos.params
        )
        possible = []
        for title, case in cases.items():
            if reason := reason_against(base / "copy", *case):
                report.leave_out(title, reason)
            else:
                possible.append(title)
        if not possible:
            reason = "this machine can run no case"
            raise UserError(Fault("--device", options.device, "machine", reason, "cuda with a GPU, or cpu"))
        todo = measuring.unfinished(report, possible, preset.turns)
        if todo:
            workspace.set_params(base / "copy", changes(*cases[possible[0]]))  # those of the last case may be refused
            workspace.prepare(base / "copy", options.store)
        measuring.take_turns(report, todo, preset.turns, lambda title: run(base / "copy", *cases[title]))
    return report


def main() -> None:
    options = measuring.parser(__doc__, "ways").parse_args()
    devices = machine.read().cuda_devices if options.device == "cuda" else 2  # on a CPU two processes with gloo
    cases = {title(way): (way, devices) for way in PRESETS[measuring.preset(options)].ways}
    report = measure("ways", options, cases, devices=devices)
    report.conclude(fastest=min(report.rows, key=lambda name: report.rows[name]["epoch_s"]))
