"""Run `dvc repro`: repair first what a killed DVC left, and wait for every process at the end.

    perennial repro [--verbose] [arguments of dvc repro]

versioning/killed_dvc.py and versioning/cache_repair.py say what is repaired. DVC's ordinary lines are shown with
--verbose, or if DVC fails: see versioning/quiet.py.

This process forwards signals to DVC and the stage. If it is killed, they are terminated. It ends after the last of
them: when the prompt is back, or a container ends, an interrupted training has saved its state.
"""

import os
import re
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from pipeline.answers import summary
from pipeline.base import children, linux
from pipeline.base.errors import STOPPED, UNKNOWN, Fault, UserError
from pipeline.checks import machine, validity
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.data import corrections
from pipeline.planning import forecast
from pipeline.sources import originals
from pipeline.versioning import cache_repair, dvc_lock, integrity, killed_dvc, programs

DVC = Path(".dvc")
WHOLE = {"-p", "--pipeline", "-P", "--all-pipelines", "-R", "--recursive"}  # with these, targets name no single stage
SINGLE = re.compile(r"-[A-Za-z]*s[A-Za-z]*")  # short options of DVC, with -s among them
WITHOUT_CACHE = {"--no-commit", "--dry", "--help", "-h"}  # with these, DVC neither writes nor reads its cache
VERBOSE = "--verbose"  # an option of this command: DVC has one of its own, for its developers (-v)
INTERACTIVE = {"-i", "--interactive"}
UNFILTERED = re.compile(r"--(verbose|quiet|dry|help)|-[A-Za-z]*[vqh][A-Za-z]*")  # with these, DVC prints all
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


def run(arguments: list[str]) -> int:
    """Run `dvc repro` until it and all processes that it started have ended. Returns its exit status."""
    linux.adopt_orphans()
    module = "run_cache" if any(map(UNFILTERED.fullmatch, arguments)) else "quiet"
    words = [f"pipeline.versioning.{module}", "dvc", "repro", *(word for word in arguments if word != VERBOSE)]
    # Ctrl-C reaches this process alone, which forwards it once.
    dvc, signals = children.start([sys.executable, "-m", *words], env=programs.environment()), list[int]()

    def forward(number: int, _: object) -> None:
        signals.append(number)
        children.send(dvc, number)

    def pause(number: int, _: object) -> None:
        children.send(dvc, number)
        os.kill(os.getpid(), signal.SIGSTOP)
        children.send(dvc, signal.SIGCONT)  # runs after somebody has continued this process

    handlers = dict.fromkeys(FORWARDED, forward) | {signal.SIGTSTP: pause}
    ignored = [number for number in handlers if signal.getsignal(number) == signal.SIG_IGN]  # as nohup has it
    before = {number: signal.signal(number, handlers[number]) for number in handlers if number not in ignored}
    try:
        status = dvc.wait()
        children.wait_for_all()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if status < 0 and not signals:
        remedy = f"if nobody did this, {UNKNOWN}; then run again"
        report([str(Fault("dvc repro", f"ended by {signal.Signals(-status).name}", "failed", remedy=remedy))])
    return status if status >= 0 else 128 - status


def report(sentences: list[str]) -> None:
    """Print one line per sentence to stderr."""
    for sentence in sentences:
        print(f"repro: {sentence}", file=sys.stderr)


def check_params(stages: frozenset[str], arguments: list[str]) -> Params:
    """The params. Raises UserError if a stage that has to run would refuse them: DVC would first remove its outputs.

    Missing photos or corrections of a stage among `stages` are refused, too: DVC's own message has no remedy.
    """
    config = params.load()  # DVC's own message about a wrong value would say less
    if note := params.missing_settings():
        report([note])
    if "--allow-missing" not in arguments:
        check_photos(config, stages)
    if faults := validity.faults(config, machine.read()):
        up_to_date = subprocess.run(
            [sys.executable, "-m", "dvc", "status", "--quiet"], capture_output=True, check=False
        ).returncode
        if up_to_date != 0:
            raise UserError(*faults)
    return config


def check_photos(config: Params, stages: frozenset[str]) -> None:
    """Raise UserError if DVC could not hash the user's photos or table of corrections, which these stages read."""
    inbox = Path(config.paths.inbox)
    if "download" in stages and config.data.source == "folder" and not inbox.is_dir():
        allowed = "the folder with the images, for data.source: folder"
        remedy = (
            "without it, train and evaluate can run on what dvc pull brings: perennial repro --allow-missing evaluate"
        )
        raise UserError(Fault("paths.inbox", str(inbox), "missing", "not a folder here", allowed, remedy))
    if "download" in stages and inbox.is_dir():
        originals.list_entries(inbox)
    if "split" in stages and not corrections.FILE.is_file():
        raise UserError(corrections.missing())


def repro(arguments: list[str]) -> int:
    """Repair, run, and repair again. Returns the exit status of DVC. Raises UserError for new damage."""
    if options := INTERACTIVE.intersection(arguments):
        reason = "DVC asks before each stage, and cannot read an answer in the background"
        raise UserError(Fault("repro", options.pop(), "value", reason, remedy="dvc repro --interactive"))
    stages = stages_of(arguments)
    paths = check_params(stages, arguments).paths
    report(killed_dvc.repair())
    dvc_lock.backup()
    if not (DVC.is_dir() and WITHOUT_CACHE.isdisjoint(arguments)) or killed_dvc.works(Path.cwd()):
        return run(arguments)
    cache = integrity.cache_folder()
    report(before := cache_repair.repair(cache, stages))
    evaluation = summary.last_evaluation(paths)
    status = run(arguments)
    dvc_lock.put_in_order()
    dvc_lock.backup()
    if status not in (STOPPED, 130):  # who stopped it waits for the prompt
        forecast.remember()
    if status == 0 and not killed_dvc.works(Path.cwd()):  # folds or a sweep may have begun meanwhile
        report(after := cache_repair.repair(cache, stages))
        cache_repair.check(before, after)
    if status == 0 and "evaluate" in stages:
        now = summary.last_evaluation(paths)
        earlier = [
            *summary.changes_since(evaluation, now, cache),
            *summary.question(summary.committed_evaluation(paths), now),
        ]
        print(f"\n{summary.summary(paths, has_report='report' in stages, earlier=earlier)}")
    return status


def stages_of(arguments: list[str]) -> frozenset[str]:
    """The stages that `dvc repro` with these arguments brings up to date; all, if it names none."""
    graph = dvc_lock.graph()
    stages = {argument.removeprefix("dvc.yaml:") for argument in arguments if not argument.startswith("-")}
    if not stages or not stages <= graph.keys() or not WHOLE.isdisjoint(arguments):
        return frozenset(graph)
    if "--downstream" in arguments:
        graph = {stage: {reader for reader, read in graph.items() if stage in read} for stage in graph}
    is_single = any(argument == "--single-item" or SINGLE.fullmatch(argument) for argument in arguments)
    queue = [] if is_single else list(stages)
    while queue:
        new = graph[queue.pop()] - stages
        stages |= new
        queue += new
    return frozenset(stages)


def main(arguments: Namespace) -> int:
    return repro(arguments.arguments)
