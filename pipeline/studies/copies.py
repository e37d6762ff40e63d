"""Working copies of the project, in which DVC runs stages with other params. They share the project's DVC cache.

So a stage that has run before, in a copy or in the project, is restored from the run cache. A copy is written anew at
every start, except its folder of runs: it has the checkpoints of interrupted trainings.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base import files, integrity, programs
from pipeline.config import document, params
from pipeline.config.params import Params

CODE = "pipeline"
NUMBA = "pipeline/loader/__pycache__/*.nb?"  # compiled code: numba compares it with the source


@dataclass(frozen=True)
class Copy:
    """A working copy: its folder, and its params."""

    folder: Path
    config: Params


@dataclass(frozen=True)
class Project:
    """What the copies are made of."""

    config: Params
    files: tuple[Path, ...]
    cache: Path  # of DVC


def project() -> Project:
    """The project in the current folder: every file that Git tracks, as it is now, and code that is not committed yet.

    Raises UserError for params with faults.
    """
    tracked = programs.output("git", "ls-files", "-z")
    new_code = programs.output("git", "ls-files", "-z", "--others", "--exclude-standard", "--", CODE)
    listed = [Path(name) for name in f"{tracked}{new_code}".split("\0") if name]
    there = [path for path in listed if path.is_symlink() or path.is_file()]  # no submodule, and no removed file
    return Project(params.load(), (*there, *Path().glob(NUMBA)), integrity.cache_folder())


def make(source: Project, folder: Path, values: Mapping[str, Any]) -> Copy:
    """Make the folder a copy of the project, with other params (dotted key → value).

    The copy reads the user's own photos, weights and archives where they are. Raises UserError for params with faults.
    """
    config = source.config
    _clear(folder, keep=Path(config.paths.runs).parts[0])
    for path in source.files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, folder / path, follow_symlinks=False)
    document.rewrite(folder / params.FILE, values)
    for own in (config.paths.inbox, config.paths.pretrained, config.paths.archives):
        if not Path(own).is_absolute() and Path(own).is_dir():
            files.link(folder / own, Path(own))
    _configure(folder, source.cache)
    return Copy(folder, params.load(folder / params.FILE))


def _clear(folder: Path, keep: str) -> None:
    """Remove everything in a folder except `keep`."""
    for path in folder.glob("*"):
        if path.name != keep:
            files.remove(path)


def _configure(folder: Path, cache: Path) -> None:
    """Let DVC in a copy use the project's cache, and no Git: the copy is in a folder that Git ignores.

    Outputs are no links to the cache: two DVCs that replace equal outputs by links at the same time can fail.
    """
    from_config = os.path.relpath(cache.resolve(), (folder / ".dvc").resolve())
    settings = f'[core]\n    no_scm = true\n[cache]\n    dir = "{from_config}"\n'
    files.write_text(folder / ".dvc/config.local", settings)
