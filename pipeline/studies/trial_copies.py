"""The work copies in which a sweep trains its trials: one copy of the project, and copies of that one."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.config import document, params
from pipeline.config.params import Params
from pipeline.studies import workcopy
from pipeline.versioning import dvc_lock, integrity

FOLDER = workcopy.FOLDER / "sweep"
PROJECT, RESULTS = FOLDER / "project", FOLDER / "results"  # a copy of the project, and the results of finished trials
DATA_FOLDER = FOLDER / "data"  # the data that they read
DATA = ("download", "split", "prepare")


def create_source(config: Params, weights: Sequence[str]) -> None:
    """Make PROJECT a copy of the project, which those of the trials are copies of: no later edit is in one of them.

    The prepared data are links to a snapshot. The folder of the runs is a link to that of the project, so that
    TensorBoard shows the trials while they run; so are the user's own weights.
    """
    drop_all()
    if workcopy.copy_project(PROJECT, {}).config != config:
        raise UserError(Fault(str(params.FILE), "changed while the data was made ready", "differs", remedy="run again"))
    paths = config.paths
    files.remove(PROJECT / paths.metrics)  # figures of another model
    stages = document.read(dvc_lock.LOCK)["stages"]
    shutil.copyfile(dvc_lock.LOCK, PROJECT / dvc_lock.LOCK)
    document.rewrite(PROJECT / dvc_lock.LOCK, {"stages": {name: stages[name] for name in DATA}})
    data = (paths.packed, paths.kept, paths.split)
    memory = integrity.load_memory() | workcopy.snapshot(data, DATA_FOLDER)
    files.write_json(PROJECT / integrity.MEMORY, memory)  # so no trial reads the images once more
    for name in data:
        files.link(PROJECT / name, DATA_FOLDER / name)
    Path(paths.runs).mkdir(parents=True, exist_ok=True)
    for name in (paths.runs, *weights):
        if not (PROJECT / name).exists():
            files.link(PROJECT / name, Path(name))


def drop(folder: Path) -> None:
    """Remove a work copy as soon as no process works there."""
    workcopy.clear(folder, keep=())
    files.remove(folder)


def drop_all() -> None:
    """Remove everything but the results of finished trials, as soon as no process and no job works in any copy."""
    workcopy.wait_for_workers(FOLDER)
    for path in FOLDER.glob("*/"):
        if path != RESULTS:
            drop(path)
