"""What `perennial plan` asks DVC. Nothing is written, and DVC's lock is not taken: a run needs it after each stage."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dvc.dependency import ParamsDependency
from dvc.exceptions import DvcException
from dvc.logger import set_loggers_level
from dvc.repo import Repo
from dvc.stage import Stage
from dvc.stage.serialize import to_single_stage_lockfile
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.meta import Meta
from dvc_data.hashfile.tree import Tree

from pipeline.base import schema
from pipeline.base.errors import Fault, UserError, damaged, one_line
from pipeline.versioning import changed_dvc, dvc_lock, programs


@contextmanager
def asked() -> Iterator[Repo]:
    """DVC's repository, for questions. Raises UserError for a folder without one, or without Git."""
    changed_dvc.apply()
    os.environ.update(programs.environment())
    try:
        opened = Repo()
    except DvcException as error:
        raise UserError(Fault("this folder", one_line(error), "missing", remedy=programs.NO_REPOSITORY)) from None
    with opened as repo, set_loggers_level(logging.WARNING):
        yield repo


def stages(repo: Repo) -> dict[str, Stage]:
    """The stages of DVC by their names.

    Raises UserError if DVC cannot read them, and for a pipe or a device as input or output: DVC would never end.
    """
    try:
        found = {stage.addressing: stage for stage in repo.index.graph}
    except (DvcException, ValueError) as error:  # ValueError: a table of params that is a number
        remedy = "dvc status says more; correct it, or take the file from an earlier commit (git checkout)"
        raise damaged(dvc_lock.YAML_FILE, one_line(error), remedy) from None
    for path in {each.def_path: None for stage in found.values() for each in [*stage.deps, *stage.outs]}:
        with schema.reading(Path(path), "bring back the file that was there"):
            pass
    return found


def is_params(dep: Any) -> bool:
    """Whether an input of a stage is a file of params."""
    return isinstance(dep, ParamsDependency)


def params_of(stage: Stage) -> tuple[set[str], dict[str, Any]]:
    """The params that a stage tracks, settings or tables by their dotted names, and the values of those that exist."""
    files = [dep for dep in stage.deps if is_params(dep)]
    values = {name: value for dep in files for name, value in dep.read_params().items()}
    return {name for dep in files for name in dep.params}, values


def cached_outputs(stage: Stage, inputs: dict[str, str], changed: bool) -> dict[str, str]:
    """The outputs (path → MD5) that DVC takes from its cache for a stage that does not run; empty if it has to run.

    As StageCache.restore finds them, but for the inputs (path → MD5) as they will be. If nothing but outputs has
    `changed`, they are those of dvc.lock.
    """
    cache = stage.repo.stage_cache
    if not changed and all(out.hash_info for out in stage.outs):
        entry = to_single_stage_lockfile(stage)
    else:
        for dep in stage.deps:
            value = dep.read_params() if is_params(dep) else inputs[dep.def_path]
            known = HashInfo(dep.hash_name, value) if value else None
            dep.meta, dep.hash_info, dep.get_hash = Meta(), known, lambda known=known: known
        entry = cache._load(stage) if all(dep.hash_info for dep in stage.deps) else None
    made = cache._create_stage(entry, wdir=stage.wdir) if entry else None
    return {out.def_path: out.hash_info.value for out in made.outs} if made and made.outs_cached() else {}


def listings(stage: Stage) -> dict[str, Any]:
    """Of each folder that a stage has read, and whose list of files DVC does not keep: path → hash, and name → MD5."""
    return {
        dep.def_path: [dep.hash_info.value, {each["relpath"]: each["md5"] for each in dep.obj.as_list()}]
        for dep in stage.deps
        if isinstance(dep.obj, Tree) and not stage.repo.cache.local.exists(dep.hash_info.value)
    }
