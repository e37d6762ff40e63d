"""Compares this folder with its commit and with dvc.lock. Each difference is a fault."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pipeline.base import errors
from pipeline.base.errors import Fault
from pipeline.checks import machine, validity
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.planning import forecast
from pipeline.versioning import dvc_lock, integrity, programs
from pipeline.versioning.dvc_lock import LOCK, StageHashes

DECISIVE = (LOCK.as_posix(), "dvc.yaml", "params.yaml", ".dvc", ".dvcignore")  # and the deps of the stages
COMMAND = "exec python -m pipeline {stage}"  # of each stage of dvc.yaml
FROM_GIT = f"take {LOCK} from an earlier commit, or perennial repro, then commit"
ANY_STAGE = "dvc pull or dvc checkout restores it; perennial repro makes all but your own photos and weights again"


def checked() -> tuple[Params, StageHashes]:
    """The params and the dvc.lock of this folder. Reads every byte of the outputs.

    Raises UserError if the folder is not what the commit and its dvc.lock say, and if it cannot run here.
    """
    config, stage_hashes = params.load(), dvc_lock.read()
    errors.raise_if_any(validity.faults(config, machine.read()))
    errors.raise_if_any(outputs_outside(stage_hashes))
    errors.raise_if_any(commit_differences(stage_hashes))
    errors.raise_if_any(lock_differences(config, stage_hashes, set(), ANY_STAGE))
    errors.raise_if_any(integrity.damage(stage_hashes))
    return config, stage_hashes


def outputs_outside(stage_hashes: StageHashes) -> list[Fault]:
    """The outputs that are outside this folder: no stage writes there, so nobody can repeat them."""
    return [
        Fault(str(LOCK), f"the output {path!r:.200} of {name}", "value", "it is outside this folder", remedy=FROM_GIT)
        for name, hashes in stage_hashes.items()
        for path in hashes["outs"]
        if not is_inside(path)
    ]


def foreign_commands(stages: Iterable[str]) -> list[Fault]:
    """The stages whose command in dvc.yaml is not of the form that this project's stages have."""
    commands, why = dvc_lock.commands(), "a command that is not this project's"
    return [
        Fault(f"the stage {name}", f"{commands.get(name)!r:.200}", "differs", why, COMMAND.format(stage=name))
        for name in stages
        if commands.get(name) != COMMAND.format(stage=name)
    ]


def commit_differences(stage_hashes: StageHashes, *others: str) -> list[Fault]:
    """The files that decide bytes, or are among `others`, and that are not as in the commit."""
    deps = {path for hashes in stage_hashes.values() for path in hashes["deps"]}
    decisive = {*DECISIVE, *others, *filter(is_inside, deps)}
    changed, remedy = programs.changed("--", *sorted(decisive)), "commit it, or restore it"
    return [Fault(path, "differs from the commit", "differs", remedy=remedy) for path in sorted(changed)]


def lock_differences(config: Params, stage_hashes: StageHashes, unneeded: set[str], remedy: str) -> list[Fault]:
    """The files that are not as in dvc.lock: code and params (dvc.lock is stale), data, and the cache.

    Outputs and folders in `unneeded` may be missing or changed. `remedy` brings data back. To be called after
    `commit_differences`: tracked files are as in the commit. Raises UserError if DVC cannot read this folder's files.
    """
    inputs = {config.paths.inbox, config.paths.pretrained}
    why, run_first = "committed without a run, so the stage is stale", "perennial repro, then commit"
    stale, changed = list[tuple[str, str]](), dict[str, str]()
    for each in forecast.forecast():
        for reason in each.reasons:
            if reason.kind == "output" or reason.name in inputs:
                changed |= reason.files or {reason.name: reason.change}
            elif reason.kind == "input":
                stale += [(each.stage, path) for path in reason.files or [reason.name]]
            elif reason.kind != "stage":  # what a stage before it writes is said there
                what = {"param": f"{params.FILE}: {reason.name}", "command": "its command in dvc.yaml"}
                stale.append((each.stage, what.get(reason.kind, "no run in dvc.lock")))
    return [
        *(Fault(f"the stage {stage}", part, "differs", why, remedy=run_first) for stage, part in stale),
        *(
            Fault(path, how, "differs", "dvc.lock describes another state", remedy=remedy)
            for path, how in sorted(changed.items())
            if not any(Path(path).is_relative_to(one) for one in unneeded)
        ),
    ]


def is_inside(path: str) -> bool:
    """Whether a path in dvc.lock is of a file in this folder."""
    return not (PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts)
