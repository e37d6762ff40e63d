"""Compares this folder with its commit and with dvc.lock. Each difference is a fault."""

import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.base import errors
from pipeline.base.errors import Fault
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.studies import runner
from pipeline.versioning import dvc_lock, integrity, programs
from pipeline.versioning.dvc_lock import LOCK, StageHashes

DECISIVE = (LOCK.as_posix(), "dvc.yaml", "params.yaml", ".dvc", ".dvcignore")  # and the deps of the stages
COMMAND = "exec setpriv --pdeathsig TERM python -m pipeline {stage}"  # of each stage of dvc.yaml
FROM_GIT = f"take {LOCK} from an earlier commit, or perennial repro, then commit"
NOT_DVCS = f"{LOCK} or dvc.yaml is not as DVC writes it; take both from an earlier commit, or perennial repro"
ANY_STAGE = "dvc pull or dvc checkout restores it; perennial repro makes all but your own photos and weights again"


def checked(on: str = "") -> tuple[Params, StageHashes]:
    """The params and the dvc.lock of this folder, after `check`. `on`: a value of --on.

    Raises UserError, also if it cannot run there.
    """
    config, stage_hashes = params.load(), dvc_lock.read()
    errors.raise_if_any(runner.faults(config, runner.machine_of(on)))
    check(config, stage_hashes)
    return config, stage_hashes


def check(config: Params, stage_hashes: StageHashes) -> None:
    """Raise UserError if this folder is not what the commit and its dvc.lock say. Reads every byte of the outputs."""
    errors.raise_if_any(outputs_outside(stage_hashes))
    errors.raise_if_any(commit_differences(stage_hashes))
    errors.raise_if_any(lock_differences(config, stage_hashes, set(), ANY_STAGE))
    errors.raise_if_any(integrity.damage(stage_hashes))


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
    lines = programs.output("git", "status", "--porcelain", "-z", "--no-renames", "--", *sorted(decisive)).split("\0")
    changed = {line[3:] for line in lines if line}  # a file that only the index lost has two lines
    remedy = "commit it, or restore it"
    return [Fault(path, "differs from the commit", "differs", remedy=remedy) for path in sorted(changed)]


def lock_differences(config: Params, stage_hashes: StageHashes, unneeded: set[str], remedy: str) -> list[Fault]:
    """The files that are not as in dvc.lock: code and params (dvc.lock is stale), data, and the cache.

    Outputs and folders in `unneeded` may be missing or changed. `remedy` brings data back. To be called after
    `commit_differences`: tracked files are as in the commit.
    """
    stale, changed = _stage_differences(_ask("status", "--json"), stage_hashes, _data(config, stage_hashes))
    data = _ask("data", "status", "--granular", "--json")
    for how, paths in data.get("uncommitted", {}).items():
        # DVC lists a changed folder and its changed files, but for a missing folder only the folder.
        missing = set() if how == "modified" else {path.rstrip("/") for path in paths if path.endswith("/")}
        changed |= {path.rstrip("/"): how for path in paths if not _inside(path, missing)}
    return [
        *stale,
        *(
            Fault(path, f"{how} since the run that dvc.lock describes", "differs", remedy=remedy)
            for path, how in sorted(changed.items())
            if not _is_or_inside(path, unneeded)
        ),
        *(
            Fault(path, "not in DVC's cache", "missing", remedy="dvc pull, or perennial repro")
            for path in sorted(data.get("not_in_cache", []))
            if not _is_or_inside(path.rstrip("/"), unneeded)
        ),
    ]


def _ask(*words: str) -> dict[str, Any]:
    """What DVC says in JSON. Raises UserError if it cannot read this folder's files."""
    return dict(json.loads(programs.dvc(*words, remedy=NOT_DVCS, kind="damaged")))


def _data(config: Params, stage_hashes: StageHashes) -> set[str]:
    """The paths of inputs and outputs that Git does not track."""
    return {*dvc_lock.outputs(stage_hashes), config.paths.inbox, config.paths.pretrained}


def is_inside(path: str) -> bool:
    """Whether a path in dvc.lock is of a file in this folder."""
    return not (PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts)


def _inside(path: str, folders: set[str]) -> bool:
    return any(parent.as_posix() in folders for parent in Path(path).parents)


def _is_or_inside(path: str, paths: set[str]) -> bool:
    return path in paths or _inside(path, paths)


def _stage_differences(
    status: dict[str, Any], stage_hashes: StageHashes, data: set[str]
) -> tuple[list[Fault], dict[str, str]]:
    """The stale stages, and changed data (path → how it changed), from the JSON of `dvc status`."""
    stale, changed = [], {}
    for name, entries in status.items():
        committed = ["its command in dvc.yaml"] if "changed command" in entries else []
        for entry in entries:
            tables = entry.values() if isinstance(entry, dict) else []
            for path, how in (item for table in tables for item in table.items()):
                if isinstance(how, dict):  # params
                    committed += [f"{path}: {key}" for key in how]
                elif path in data or name.endswith(".dvc"):
                    changed[path] = how
                else:
                    committed += changed_files(path, stage_hashes.get(name, {}).get("deps", {}).get(path, ""))
        why, remedy = "committed without a run, so the stage is stale", "perennial repro, then commit"
        stale += [Fault(f"the stage {name}", part, "differs", why, remedy=remedy) for part in committed]
    return stale, changed


def changed_files(path: str, md5: str) -> list[str]:
    """The files at or below `path` that changed since dvc.lock got the hash `md5` for it, by Git's history.

    `path` itself if Git does not tell: they were committed together with dvc.lock, or the history is cut.
    """
    since = programs.output("git", "log", "-1", "--format=%H", f"-S{md5}", "--", str(LOCK)).strip() if md5 else ""
    if not since:
        return [path]
    changed = programs.output("git", "diff", "--name-only", "--relative", "-z", since, "HEAD", "--", path)
    return changed.split("\0")[:-1] or [path]
