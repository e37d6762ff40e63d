"""Work copies of the project, in which DVC runs stages with other params, or those of a commit.

A work copy shares DVC's cache with the project, and with it the run cache: DVC restores a stage that has run before,
in a work copy or in the project. A work copy is no Git repository, and the project's own files stay as they are.
"""

import functools
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base import files, locks
from pipeline.base.errors import UserError
from pipeline.config import document, params
from pipeline.config.params import Params
from pipeline.studies import slurm
from pipeline.versioning import cache_repair, integrity, processes, programs
from pipeline.versioning.integrity import Hashed

FOLDER = programs.TEMPORARY / "reruns"  # of all work copies that a next start uses again
CODE = "pipeline"
COMPILED = "pipeline/loader/__pycache__/*.nb?"  # by numba, which compares the source's hash
RUNS = frozenset({"runs"})  # what stays if a work copy is made again: the checkpoints of interrupted trainings
USER_FOLDERS = ("inbox", "pretrained", "archives")  # in paths: in no commit without `dvc add`
POLL_SECONDS = 0.2  # between two searches for a process that still works in a folder


@dataclass(frozen=True)
class WorkCopy:
    """The folder of a work copy, and its params."""

    folder: Path
    config: Params


def project_files(project: Path = Path()) -> list[Path]:
    """The project's files, relative to it: what Git tracks, as it is now, and code that is not committed yet.

    A file that is removed, and a submodule, is not among them.
    """
    tracked = programs.output("git", "ls-files", "-z", cwd=project)
    new = programs.output("git", "ls-files", "-z", "--others", "--exclude-standard", "--", CODE, cwd=project)
    names = [Path(name) for name in f"{tracked}{new}".split("\0") if name]
    compiled = [path.relative_to(project) for path in project.glob(COMPILED)]
    return [*(name for name in names if (project / name).is_symlink() or (project / name).is_file()), *compiled]


def copy_files(names: Iterable[Path], project: Path, folder: Path) -> None:
    """Copy these files of the project into the folder, with their times. What has these names there is replaced."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        files.remove(folder / name)
        shutil.copy2(project / name, folder / name, follow_symlinks=False)


def snapshot(names: Iterable[str], folder: Path) -> Hashed:
    """Keep these files and folders of the project as they are now, in `folder`. Returns the hash of each file.

    They are hard links: a stage replaces its outputs by renaming, and the old files stay. Where that is not possible,
    on another disk, they are copies.
    """
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if Path(name).is_dir():
            shutil.copytree(name, folder / name, copy_function=_link_or_copy)
        else:
            _link_or_copy(name, str(folder / name))
    hashes = integrity.hash_files((str(path) for path in folder.rglob("*") if path.is_file()), {})
    return {Path(path).relative_to(folder).as_posix(): entry for path, entry in hashes.items()}


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def check_out(commit: str, folder: Path) -> None:
    """Write every file of a commit of the project in the current folder into `folder`.

    The project may be a subfolder of its repository. Raises UserError if Git does not know the commit.
    """
    index = {**programs.environment(), "GIT_INDEX_FILE": str(folder.absolute() / ".index")}
    folder.mkdir(parents=True, exist_ok=True)
    top, *inside = programs.output("git", "rev-parse", "--show-toplevel", "--show-prefix").splitlines()
    tree = f"{commit}:{inside[0]}" if inside and inside[0] else commit
    programs.output("git", "read-tree", "--end-of-options", tree, environ=index)
    write = ("checkout-index", "--all", "--force", f"--prefix={folder.absolute()}/")
    programs.output("git", *write, cwd=Path(top), environ=index)
    files.remove(folder / ".index")


def copy_project(folder: Path, values: Mapping[str, Any], keep: Collection[str] = RUNS) -> WorkCopy:
    """Make the folder a work copy of the project in the current folder, with other params (dotted key → value).

    `keep`: names in the folder that stay as they are. Everything else there is removed. Raises UserError for params
    with faults.
    """
    clear(folder, keep)
    copy_files(project_files(), Path(), folder)
    return _connect(folder, values, USER_FOLDERS)


def copy_commit(
    folder: Path,
    commit: str,
    values: Mapping[str, Any],
    keep: Collection[str] = RUNS,
    user_folders: Collection[str] = USER_FOLDERS,
) -> WorkCopy:
    """Make the folder a work copy of a commit, as `copy_project` does.

    `user_folders`: those of the user's own folders that it reads where they are; the others are as in the commit.
    """
    clear(folder, keep)
    check_out(commit, folder)
    return _connect(folder, values, user_folders)


def copy_again(source: Path, folder: Path, values: Mapping[str, Any]) -> WorkCopy:
    """Make the folder, which is beside the work copy `source`, the same work copy with other params."""
    entries = [path for path in source.rglob("*") if path.is_symlink() or path.is_file()]
    copy_files([path.relative_to(source) for path in entries], source, folder)
    document.rewrite(folder / params.FILE, values)
    return WorkCopy(folder, params.load(folder / params.FILE))


def share(names: Iterable[str], copies: Sequence[WorkCopy]) -> None:
    """Link these files and folders of the first work copy into the other ones."""
    for name in names:
        for copy in copies[1:]:
            files.link(copy.folder / name, copies[0].folder / name)


def clear(folder: Path, keep: Collection[str]) -> None:
    """Remove everything in a folder, except what has one of these names, as soon as no process works there.

    A killed command leaves processes that save their state.
    """
    wait_for_workers(folder)
    if folder.is_symlink():  # what is behind it is nobody's work copy
        files.remove(folder)
    for path in folder.glob("*"):
        if path.name not in keep:
            files.remove(path)


def wait_for_workers(folder: Path) -> None:
    """Wait until no process of DVC or of this project works in a folder, or below it. Prints for which it waits.

    Nor a job of Slurm, which the same command has left there.
    """
    slurm.wait(folder)
    last_pid = 0
    while folder.is_dir() and (pids := processes.workers(folder.resolve())):
        if pids[0] != last_pid:
            last_pid = pids[0]
            print(f"waiting for process {last_pid}, which still works in {folder}", flush=True)
        time.sleep(POLL_SECONDS)


@contextmanager
def study_folder(name: str, command: str) -> Iterator[Path]:
    """A block with a folder for the work copies of a study. A start after a kill has what was there.

    DVC's cache is repaired before the block. After a block without an error the folder is removed. `command` begins the
    messages.
    """
    folder = FOLDER / name
    with locks.hold(folder, f"runs perennial {command}"):
        wait_for_workers(folder)
        _repair(command)
        yield folder
        files.remove(folder)


def check_cache(command: str) -> None:
    """Raise UserError if DVC's cache was damaged during a study: nothing is to be written of its runs."""
    if _repair(command):
        raise UserError(cache_repair.DURING)


def _repair(command: str) -> bool:
    """Repair what a power cut or a kill has damaged in DVC's cache, and print it. Returns whether there was damage.

    While a DVC works here, nothing is changed: it may be writing these files. Outputs in this folder stay as they are.
    """
    busy = processes.workers(Path.cwd())
    repairs = [] if busy else cache_repair.repair(integrity.cache_folder(), stages=())
    for sentence in repairs:
        print(f"{command}: {sentence}", file=sys.stderr)
    return bool(repairs)


@functools.cache
def _cache_of(project: Path) -> Path:
    """The folder of DVC's cache of the project in the current folder. DVC is asked once, and not for each copy."""
    return (project / integrity.cache_folder()).resolve()


def _connect(folder: Path, values: Mapping[str, Any], user_folders: Collection[str]) -> WorkCopy:
    """Set the params, and let the copy use the project's cache and read the user's own files where they are.

    DVC in a work copy uses no Git: Git ignores the folder. Outputs are no links to the cache: two DVCs that replace
    equal outputs by links at the same time can fail.
    """
    document.rewrite(folder / params.FILE, values)
    config = params.load(folder / params.FILE)
    if config.run.residency == params.STREAM:  # DVC needs all packed images in the copy, and knows no remote there
        document.rewrite(folder / params.FILE, {"run.residency": "auto"})
        config = params.load(folder / params.FILE)
    Path(config.paths.archives).mkdir(parents=True, exist_ok=True)  # else each copy would download for itself
    for path in (Path(getattr(config.paths, name)) for name in user_folders):
        if not path.is_absolute() and path.is_dir():
            files.link(folder / path, path)
    cache = os.path.relpath(_cache_of(Path.cwd()), (folder / ".dvc").resolve())
    files.write_text(folder / ".dvc/config.local", f'[core]\n    no_scm = true\n[cache]\n    dir = "{cache}"\n')
    return WorkCopy(folder, config)
