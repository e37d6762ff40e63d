"""Run `dvc repro` in this process: repair first what a killed DVC or a power cut left, and sync everything at the end.

    perennial repro [--verbose] [arguments of dvc repro]

versioning/in_process.py says what is other than in DVC, and versioning/cache_repair.py what is repaired. DVC's ordinary
lines are shown with --verbose.

Signals go to the stage that runs. If this process is killed, the stage is terminated. It ends after the last of its
processes: when the prompt is back, or a container ends, an interrupted training has saved its state.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Collection
from pathlib import Path

from pipeline.answers import summary
from pipeline.base.errors import Fault, UserError, raise_if_any
from pipeline.checks import machine, validity
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.data import corrections
from pipeline.sources import originals
from pipeline.studies import home
from pipeline.versioning import cache_repair, dvc_lock, in_process, processes

FILES = (".dvc", ".yaml")  # of stages
VERBOSE = "--verbose"  # an option of this command: DVC has one of its own, for its developers (-v)


def report(sentences: list[str]) -> None:
    """Print one line per sentence to stderr."""
    for sentence in sentences:
        print(f"repro: {sentence}", file=sys.stderr)


def check_photos(config: Params, stages: Collection[str]) -> None:
    """Raise UserError if DVC could not hash the user's photos or table of corrections, which these stages read."""
    inbox = Path(config.paths.inbox)
    if "download" in stages and not inbox.is_dir():
        allowed, remedy = "", f"DVC looks there for every data.source: mkdir -p {inbox}"
        if config.data.source == "folder":
            allowed = "the folder with the images, for data.source: folder"
            instead = "perennial repro --allow-missing evaluate"
            remedy = f"without it, train and evaluate can run on what dvc pull brings: {instead}"
        raise UserError(Fault("paths.inbox", str(inbox), "missing", "not a folder here", allowed, remedy))
    if "download" in stages and inbox.is_dir():
        originals.list_entries(inbox)
    if "split" in stages and not corrections.FILE.is_file():
        raise UserError(corrections.missing())


def repro(words: list[str], verbose: bool = False, below: str = "") -> int:
    """Repair, run, and sync. Returns the exit status. `below`: the folder in which the words were typed."""
    arguments = in_process.parse(words)
    if below:  # the name of a stage is the same everywhere; a file is named from there
        arguments.targets = [
            str(Path(below, name)) if name.partition(":")[0].endswith(FILES) else name for name in arguments.targets
        ]
    if arguments.interactive:
        reason = "DVC asks before each stage, and signals go to the stage"
        raise UserError(Fault("repro", "--interactive", "value", reason, remedy="dvc repro --interactive"))
    os.chdir(arguments.cd)
    config = params.load()  # DVC's own message about a wrong value would say less
    if note := params.missing_settings():
        report([note])
    shows_all = verbose or arguments.dry
    with in_process.session(arguments, shows_all) as repo:
        if arguments.dry:
            return in_process.reproduce(repo, arguments, shows_all)
        if dvc_lock.is_cut():
            report([f"{dvc_lock.LOCK} was cut by a killed DVC: {dvc_lock.restore()}"])
        found = in_process.stages(repo, arguments)
        stages = [stage.addressing for stage in found]
        # Before DVC removes the outputs of a stage that refuses them.
        if not (arguments.allow_missing or arguments.pull):
            raise_if_any(in_process.lost(found))
            check_photos(config, stages)
        if (faults := validity.faults(config, machine.read())) and repo.status():
            raise UserError(*faults)
        cache = Path(os.path.relpath(repo.cache.local_cache_dir))
        is_alone = not processes.workers(Path.cwd())  # no folds and no sweep, which may be writing to the cache
        if is_alone:
            report(cache_repair.repair(cache, stages))
        evaluation = summary.evaluation(dvc_lock.here(), config.paths)
        status = in_process.reproduce(repo, arguments, shows_all)
        dvc_lock.put_in_order()
        if status == 0 and is_alone:
            cache_repair.settle(cache)
    if status == 0 and "evaluate" in stages:
        now = summary.evaluation(dvc_lock.here(), config.paths)
        earlier = [
            *summary.changes_since(evaluation, now, cache),
            *summary.question(summary.evaluation(dvc_lock.committed(), config.paths), now),
        ]
        print(f"\n{summary.summary(config.paths, has_report='report' in stages, earlier=earlier)}")
        print(f"{'all pages':<24} {home.write(config)}")
    return status


def main(arguments: Namespace) -> int:
    words = arguments.arguments
    return repro([word for word in words if word != VERBOSE], VERBOSE in words, arguments.below)
