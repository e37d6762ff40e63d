"""Runs stages of the commit again: in a work copy, by force, on the inputs that DVC's cache holds."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipeline.base import files
from pipeline.config.params import Params
from pipeline.running import checkpoint_copy
from pipeline.studies import workcopy
from pipeline.studies.workcopy import WorkCopy
from pipeline.versioning import programs
from pipeline.versioning.dvc_lock import StageHashes

# Options of dvc repro: it runs the named stages alone, takes nothing from its cache, and writes nothing to it.
BY_FORCE = ("--single-item", "--force", "--no-run-cache", "--no-commit")
LOG = programs.TEMPORARY / "verify.txt"  # the log of a rerun that failed: its work copy is removed
WITHOUT_PHOTOS = {"features", "train", "evaluate"}  # the stages that read no photo and no weights of the user


def unversioned(config: Params) -> dict[str, str]:
    """Stage → the user's own input that it reads, if no commit has this input (`dvc add` puts it into one)."""
    inputs = {}
    inbox = Path(config.paths.inbox)
    is_elsewhere = inbox.is_absolute() or inbox.is_symlink()
    if config.data.source in ("inbox", "folder") and (is_elsewhere or not all(map(_is_added, files.visible(inbox)))):
        inputs["download"] = config.paths.inbox
    if config.train.weights not in ("none", "imagenet") and not _is_added(Path(config.train.weights)):
        inputs["weights"] = config.train.weights
    return inputs


def _is_added(path: Path) -> bool:
    """Whether a file beside this path says that DVC versions it (or the path is such a file), and Git has that file."""
    file = path if path.suffix == ".dvc" else path.with_name(f"{path.name}.dvc")
    return bool(programs.output("git", "ls-files", "--", str(file)))


def user_files(config: Params) -> list[str]:
    """The files of the commit with which DVC versions the user's own photos and weights."""
    folders = (config.paths.inbox, config.paths.pretrained)
    patterns = [f"{folder}/*.dvc" for folder in folders if not Path(folder).is_absolute()]
    return programs.output("git", "ls-files", "-z", "--", *patterns).split("\0")[:-1]


def make_copy(
    folder: Path, config: Params, stage_hashes: StageHashes, stages: Collection[str], values: Mapping[str, Any] = {}
) -> WorkCopy:
    """Make the folder a work copy of the commit, with other params, and the inputs that these stages do not write.

    Archives, and photos in no commit (data.source: folder), are read where they are.
    """
    photos = config.data.source == "folder" and "download" in unversioned(config)
    # Else a repeated training would begin at the end of the claimed one, and remove its copies.
    values = {**values, checkpoint_copy.KEY: checkpoint_copy.NONE}
    copy = workcopy.copy_commit(folder, "HEAD", values, ("archives", "inbox") if photos else ("archives",))
    outs = {path for name in stage_hashes if name not in stages for path in stage_hashes[name]["outs"]}
    inputs = sorted(outs & {path for name in stages for path in stage_hashes[name]["deps"]})
    if not WITHOUT_PHOTOS.issuperset(stages):
        inputs += user_files(copy.config)
    if inputs:
        programs.dvc("checkout", *inputs, cwd=copy.folder, environ={**programs.environment(), **variables(copy)})
    return copy


def variables(copy: WorkCopy) -> dict[str, str]:
    """DVC's site cache is in the copy, and ends with it. A training asks Git for the commit that it belongs to."""
    repository = programs.output("git", "rev-parse", "--absolute-git-dir").strip()
    site = (copy.folder / programs.TEMPORARY / "site").absolute()
    return {"DVC_SITE_CACHE_DIR": str(site), "GIT_DIR": repository, "GIT_OPTIONAL_LOCKS": "0"}
