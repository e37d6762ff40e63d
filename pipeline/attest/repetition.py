"""Runs stages of the commit again: in a work copy, by force, on the inputs that DVC's cache holds."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipeline.base import files
from pipeline.config.params import Params
from pipeline.running import checkpoint_copy
from pipeline.studies import workcopy
from pipeline.studies.runner import Job
from pipeline.studies.workcopy import WorkCopy
from pipeline.versioning import programs
from pipeline.versioning.dvc_lock import StageHashes

BY_FORCE = ("--force", "--no-run-cache", "--no-commit")  # DVC takes nothing from its cache, and writes nothing to it
LOG = programs.TEMPORARY / "verify.txt"  # the log of a rerun that failed: its work copy is removed
WITHOUT_PHOTOS = {"features", "train", "evaluate"}  # the stages that read no photo and no weights of the user


def unversioned(config: Params) -> dict[str, str]:
    """Stage → the user's own input that it reads, if no commit has this input (`dvc add` puts it into one)."""
    inputs = {}
    uses_inbox, inbox = config.data.source in ("inbox", "folder"), Path(config.paths.inbox)
    if uses_inbox and not (_in_project(inbox) and all(map(_is_added, files.visible(inbox)))):
        inputs["download"] = config.paths.inbox
    if config.train.weights not in ("none", "imagenet") and not _is_added(Path(config.train.weights)):
        inputs["weights"] = config.train.weights
    return inputs


def _in_project(path: Path) -> bool:
    return not path.is_absolute() and not path.is_symlink()


def _is_added(path: Path) -> bool:
    """Whether a file beside this path says that DVC versions it (or the path is such a file), and Git has that file."""
    file = path if path.suffix == ".dvc" else path.with_name(f"{path.name}.dvc")
    return bool(programs.output("git", "ls-files", "--", str(file)))


def _user_folders(config: Params) -> list[str]:
    """The folders of the user's own files that are inside the project."""
    return [path for path in (config.paths.inbox, config.paths.pretrained) if not Path(path).is_absolute()]


def user_files(config: Params) -> list[str]:
    """The files of the commit with which DVC versions the user's own photos and weights."""
    patterns = [f"{folder}/*.dvc" for folder in _user_folders(config)]
    return programs.output("git", "ls-files", "-z", "--", *patterns).split("\0")[:-1]


def make_copy(folder: Path, config: Params, values: Mapping[str, Any]) -> WorkCopy:
    """Make the folder a work copy of the commit, with other params, and without inputs.

    Archives, and photos in no commit (data.source: folder), are read where they are.
    """
    photos = config.data.source == "folder" and "download" in unversioned(config)
    # Else a repeated training would begin at the end of the claimed one, and remove its copies.
    values = {**values, checkpoint_copy.KEY: checkpoint_copy.NONE}
    return workcopy.copy_commit(folder, "HEAD", values, ("archives", "inbox") if photos else ("archives",))


def bring_inputs(copy: WorkCopy, stage_hashes: StageHashes, stages: Collection[str]) -> list[str]:
    """Check out the inputs of these stages of a work copy that other stages write. Returns the paths."""
    outs = {path for name in stage_hashes if name not in stages for path in stage_hashes[name]["outs"]}
    inputs = sorted(outs & {path for name in stages for path in stage_hashes[name]["deps"]})
    if not WITHOUT_PHOTOS.issuperset(stages):
        inputs += user_files(copy.config)
    if inputs:
        programs.dvc("checkout", *inputs, cwd=copy.folder, environ={**programs.environment(), **variables(copy)})
    return inputs


def job(name: str, copy: WorkCopy, stages: Collection[str], *options: str) -> Job:
    """The job that runs stages in a work copy by force. `options`: more of those of `dvc repro`."""
    return Job(name, copy.folder, tuple(stages), (*BY_FORCE, *options), variables(copy))


def variables(copy: WorkCopy) -> dict[str, str]:
    """DVC's site cache is in the copy, and ends with it. A training asks Git for the commit that it belongs to."""
    repository = programs.output("git", "rev-parse", "--absolute-git-dir").strip()
    site = (copy.folder / programs.TEMPORARY / "site").absolute()
    return {"DVC_SITE_CACHE_DIR": str(site), "GIT_DIR": repository, "GIT_OPTIONAL_LOCKS": "0"}
