"""Work copies of the project, in which DVC runs stages with other params, or those of a commit.

A work copy shares DVC's cache with the project, and with it the run cache: DVC restores a stage that has run before,
in a work copy or in the project. A work copy is no Git repository, and the project's own files stay as they are.
"""

import functools
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base import files
from pipeline.base.errors import missing
from pipeline.config import document, params
from pipeline.config.params import Params
from pipeline.studies import slurm
from pipeline.versioning import cache_repair, integrity, processes, programs

FOLDER = programs.TEMPORARY / "reruns"  # of all work copies that a next start uses again
CODE = "pipeline"
COMPILED = "pipeline/loader/__pycache__/*.nb?"  # by numba, which compares the source's hash
USER_FOLDERS = ("inbox", "pretrained", "archives")  # in paths: in no commit without `dvc add`
POLL_SECONDS = 0.2  # between two searches for a process that still works in a folder


@dataclass(frozen=True)
class WorkCopy:
    """The folder of a work copy, and its params."""

    folder: Path
    config: Params


def project_files(project: Path = Path()) -> list[Path]:
    """The project's files, relative to it: what Git tracks, as it is now, and code that is not committed yet.

    A file that is removed, and a submodule, is not among them. Raises UserError if params.yaml is not.
    """
    tracked = programs.output("git", "ls-files", "-z", cwd=project)
    new = programs.output("git", "ls-files", "-zo", "--exclude-standard", "--", CODE, params.Paths.mine, cwd=project)
    names = [Path(name) for name in f"{tracked}{new}".split("\0") if name]
    if params.FILE not in names:
        raise missing(project / params.FILE, "a copy has what Git tracks: git add . && git commit", "not in Git")
    compiled = [path.relative_to(project) for path in project.glob(COMPILED)]
    return [*(name for name in names if (project / name).is_symlink() or (project / name).is_file()), *compiled]


def copy_files(names: Iterable[Path], project: Path, folder: Path) -> None:
    """Copy these files of the project into the folder, with their times. What has these names there is replaced."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        files.remove(folder / name)
        shutil.copy2(project / name, folder / name, follow_symlinks=False)


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


def copy_project(folder: Path, values: Mapping[str, Any]) -> WorkCopy:
    """Make the folder a work copy of the project in the current folder, with other params (dotted key → value).

    What is there is removed. Raises UserError for params with faults.
    """
    files.remove(folder)
    copy_files(project_files(), Path(), folder)
    return _connect(folder, values, USER_FOLDERS)


def copy_commit(
    folder: Path, commit: str, values: Mapping[str, Any], user_folders: Collection[str] = USER_FOLDERS
) -> WorkCopy:
    """Make the folder a work copy of a commit, as `copy_project` does.

    `user_folders`: those of the user's own folders that it reads where they are; the others are as in the commit.
    """
    files.remove(folder)
    check_out(commit, folder)
    return _connect(folder, values, user_folders)


def copy_again(source: Path, folder: Path, values: Mapping[str, Any], links: Collection[str]) -> WorkCopy:
    """Make the folder, which is beside the work copy `source`, the same work copy with other params.

    `links`: files and folders of the source that it reads there. What is in the folder is removed.
    """
    files.remove(folder)
    linked = {source / name for name in links}

    def left_out(parent: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(parent, name) in linked]

    shutil.copytree(source, folder, symlinks=True, ignore=left_out)  # without a walk through the images
    for name in links:
        files.link(folder / name, source / name)
    document.rewrite(folder / params.FILE, values)
    return WorkCopy(folder, params.load(folder / params.FILE))


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


def repair_cache(command: str) -> bool:
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
    settings = f"[core]\n    no_scm = true\n[cache]\n    dir = '''{cache}'''\n"  # a folder may be named with quotes
    files.write_text(folder / ".dvc/config.local", settings)
    return WorkCopy(folder, config)
