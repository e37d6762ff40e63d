"""The folder of a run, `runs/<fingerprint>/`. Nothing in it is ever hashed.

    checkpoint.pt        the newest checkpoint, and the one before it; removed when the run is finished and recorded
    lock, pid            held by the process that trains, and its process id
    tensorboard/<k>/     the events of the k-th attempt
    provenance.json      see provenance.py; it exists when the run has finished

The fingerprint covers everything that changes the bytes of the model. A start with the same fingerprint resumes.

    python -m pipeline.training.runs --clean   removes the folders of finished runs, and of runs that no start resumes
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pipeline.base import dvc_lock, files, integrity, schema
from pipeline.base.errors import UserError, exit_status
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.data import packed
from pipeline.engine import environment
from pipeline.engine.agreement import Facts
from pipeline.engine.world import World
from pipeline.training import checkpoint, provenance

CHECKPOINT = "checkpoint.pt"


def decisive(config: Params, packed_digest: str) -> dict[str, Any]:
    """Everything that changes the bytes of the model: tracked params, packed images, split, weights, code, versions.

    Code is the files that dvc.yaml lists for the train stage, with their SHA-256 (hexadecimal). A change of another
    file therefore does not end an interrupted run.
    """
    return {
        "train": config.train.model_dump(mode="json"),
        "processes": "any" if config.train.parallel == "elastic" else config.run.processes,
        "packed": packed_digest,
        "evaluate.batch_size": config.evaluate.batch_size,  # validation uses batches of this size
        "weights": {path.name: files.sha256(path) for path in sorted(Path(config.paths.weights).glob("*.safetensors"))},
        "split": files.sha256(Path(config.paths.split)),
        "files": {path.as_posix(): files.sha256(path) for path in dvc_lock.code("train")},
    }


def fingerprint(parts: dict[str, Any]) -> str:
    """The SHA-256 (hexadecimal) of what `decisive` returns."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def facts(config: Params, parts: dict[str, Any], world: World) -> Facts:
    """What all processes of a training must have in common, by the remedy if they differ.

    That is everything in `decisive`, and what would let the run hang.
    """
    may_differ = {"node_rank", "rendezvous", "workers", "residency"}
    versions, variables = provenance.versions(), environment.numeric_variables(environment.at_start())
    hardware = provenance.hardware(world, config.train.threads, config.train.arithmetic)
    kind = "train.parallel: 'elastic' needs processes of one kind; take such, or train.parallel: ddp"
    return {
        "give every node the same params.yaml, then run again": {
            **{f"train.{name}": value for name, value in parts["train"].items()},
            "evaluate.batch_size": parts["evaluate.batch_size"],
            **{f"run.{name}": value for name, value in config.run.model_dump(exclude=may_differ).items()},
        },
        "give every node the same data (dvc repro prepare, or a copy), then run again": {
            "SHA-256 of paths.packed": parts["packed"],
            "SHA-256 of paths.split": parts["split"],
            **{f"SHA-256 of {name} in paths.weights": digest for name, digest in parts["weights"].items()},
        },
        "check out the same commit on every node, then run again": parts["files"],
        "install the same packages on every node (requirements/lock.txt, or the image), then run again": versions,
        "set it alike on every node, or unset it, then run again": variables,
        # Otherwise the bits of an elastic run would depend on which process computes which shard.
        kind: hardware if config.train.parallel == "elastic" else {},
    }


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Inside the block this process holds the lock of the run's folder. The kernel frees the lock of a dead process.

    Raises UserError if another process holds it. Raises OSError, with the file's name, if the file system has no locks:
    a plain file instead of a lock would outlive the process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    holder, lock = folder / "pid", FileLock(folder / "lock", timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        pid = holder.read_text().strip() if holder.exists() else "unknown"
        raise UserError(
            f"{folder}: process {pid} is training this run; wait for it, or end it, then run again"
        ) from None
    except OSError as error:
        error.filename = error.filename or str(folder / "lock")
        raise
    try:
        holder.write_text(f"{os.getpid()}\n")
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class Finished:
    """The part of provenance.json that is read."""

    __pydantic_config__ = schema.OPEN

    model: str  # MD5 of the exported weights


def recorded(folder: Path) -> bool:
    """Whether the run has finished, and dvc.lock holds its model. Raises UserError if one of the files is damaged."""
    described = folder / provenance.FILE
    if not (described.exists() and dvc_lock.LOCK.exists()):
        return False
    outs = dvc_lock.read().get("train", {}).get("outs", {})
    return schema.json_of(described, Finished, f"remove the run: rm -r {folder}").model in outs.values()


def drop_finished_checkpoint(folder: Path) -> None:
    """Remove the checkpoint of a finished run, if it is no longer needed.

    It is needed until dvc.lock records the model: a run that is killed after its last step then resumes at its end.
    Without DVC nothing records the model, so it is removed when the run has finished.
    """
    if recorded(folder) or ((folder / provenance.FILE).is_file() and integrity.UNDER_DVC not in os.environ):
        checkpoint.remove(folder / CHECKPOINT)


def prepare_run(folder: Path) -> None:
    """Prepare the folder for a start, and remove the checkpoints of all finished runs beside it.

    They are removed now because dvc.lock may soon record another model. A finished run with a checkpoint resumes.
    """
    for run in sorted(folder.parent.glob("*/")):
        drop_finished_checkpoint(run)
    if not any(folder.glob(f"*{CHECKPOINT}")):
        (folder / provenance.FILE).unlink(missing_ok=True)


def tensorboard_folder(folder: Path) -> Path:
    """A folder for TensorBoard events that no earlier attempt used."""
    boards = folder / "tensorboard"
    return boards / str(len(list(boards.iterdir())) if boards.is_dir() else 0)


def clean(config: Params) -> str:
    """Remove the runs that no start with these params resumes and no living process holds. Returns a summary."""
    inputs = (Path(config.paths.packed), Path(config.paths.split))
    current = ""  # nothing is packed, so nothing can be resumed
    if all(path.exists() for path in inputs):  # a damaged input is an error: the current run is then unknown
        current = fingerprint(decisive(config, packed.load(*inputs).digest))
    removed, freed = 0, 0
    for folder in sorted(Path(config.paths.runs).glob("*/")):
        if folder.name == current and any(folder.glob(f"*{CHECKPOINT}")) and not recorded(folder):
            continue
        try:
            with locked(folder):
                freed += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                files.remove(folder)
                removed += 1
        except UserError as held:
            print(f"runs: left alone: {held}", file=sys.stderr)
    return f"runs: {removed} folders removed, {freed / 1e6:,.1f} MB freed"


def main() -> int:
    if sys.argv[1:] != ["--clean"]:
        print("usage: python -m pipeline.training.runs --clean", file=sys.stderr)
        return 2

    def cleaned() -> int:
        print(clean(params.load()))
        return 0

    return exit_status("runs", cleaned)


if __name__ == "__main__":
    sys.exit(main())
