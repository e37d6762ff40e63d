"""The folder of a run, `runs/<model>-<precision>-<parallel>-<experiment, if any>-<8 digits>/`. Nothing in it is hashed.

    fingerprint          64 hexadecimal digits; the folder's name has the first of them
    checkpoint.pt        the newest checkpoint, and the one before it; removed when the run is finished and recorded
    lock, pid            held by the process that trains, and its process id
    events.out.…         of TensorBoard, one file per attempt
    provenance.json      see provenance.py; it exists when the run has finished

The fingerprint covers everything that changes the bytes of the model. A start with the same fingerprint resumes.

DVC runs a queued experiment in a temporary copy of the project, and removes the copy afterwards. Its events and its
provenance.json are written into a folder of the same name in the project itself.

    python -m pipeline.training.runs --clean   removes the folders of finished runs, and of runs that no start resumes
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base import dvc_lock, files, integrity, locks, schema
from pipeline.base.errors import UserError, exit_status
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.data import packed
from pipeline.engine import environment
from pipeline.engine.agreement import Facts
from pipeline.engine.world import World
from pipeline.training import checkpoint, identity, provenance

CHECKPOINT, FINGERPRINT = "checkpoint.pt", "fingerprint"
BUSY = "is training this run"  # says of the process that holds the lock
DIGITS = (8, 16, 64)  # of the fingerprint in a folder's name: more only if another run has the same ones


def decisive(config: Params, packed_digest: str) -> dict[str, Any]:
    """Everything that changes the bytes of the model: tracked params, packed images, split, weights, code, versions.

    Code is the files that dvc.yaml lists for the train stage, with their SHA-256 (hexadecimal). A change of another
    file therefore does not end an interrupted run.
    """
    return {
        "settings": identity.settings(config, ["train"]),
        "packed": packed_digest,
        "weights": {path.name: files.sha256(path) for path in sorted(Path(config.paths.weights).glob("*.safetensors"))},
        "split": files.sha256(Path(config.paths.split)),
        "files": {path.as_posix(): files.sha256(path) for path in dvc_lock.code("train")},
    }


def folder_of(config: Params, digest: str) -> Path:
    """The folder of the run with this fingerprint: the one that exists, or a name for a new one."""
    parent = Path(config.paths.runs)
    for digits in DIGITS:
        for folder in sorted(parent.glob(f"*-{digest[:digits]}")):
            if _fingerprint_in(folder) == digest:
                return folder
    names = [parent / _name(config, digest[:digits]) for digits in DIGITS]
    return next(name for name in names if _fingerprint_in(name) in ("", digest))


def _name(config: Params, digits: str) -> str:
    settings = config.train
    experiment = os.environ.get("DVC_EXP_NAME", "")
    parts = (settings.model, settings.precision, settings.parallel, experiment, digits)
    return "-".join(part.replace("/", "-") for part in parts if part)


def _fingerprint_in(folder: Path) -> str:
    """The fingerprint of a run's folder; empty if there is none."""
    path = folder / FINGERPRINT
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def board_of(folder: Path) -> Path:
    """The folder that keeps a run's events: in the project itself, if this is a temporary copy of it."""
    project = Path(os.environ.get("DVC_ROOT", "."))  # DVC sets it for the commands that it runs
    return folder if project.resolve() == Path.cwd() else project / folder


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
            **parts["settings"],
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


def prepare_run(folder: Path, digest: str) -> None:
    """Prepare the folder for a start of the run with this fingerprint, and remove the checkpoints of finished runs.

    They are removed now because dvc.lock may soon record another model. A finished run with a checkpoint resumes.
    """
    for run in sorted(folder.parent.glob("*/")):
        drop_finished_checkpoint(run)
    if not any(folder.glob(f"*{CHECKPOINT}")):
        (folder / provenance.FILE).unlink(missing_ok=True)
    for one in dict.fromkeys((folder, board_of(folder))):
        files.write_text(one / FINGERPRINT, f"{digest}\n")


def keep_provenance(folder: Path) -> None:
    """Copy provenance.json to where the run's events are, if that is another folder."""
    if (board := board_of(folder)) != folder:
        files.write_text(board / provenance.FILE, (folder / provenance.FILE).read_text(encoding="utf-8"))


def clean(config: Params) -> str:
    """Remove the runs that no start with these params resumes and no living process holds. Returns a summary."""
    inputs = (Path(config.paths.packed), Path(config.paths.split))
    current = ""  # nothing is packed, so nothing can be resumed
    if all(path.exists() for path in inputs):  # a damaged input is an error: the current run is then unknown
        current = identity.digest(decisive(config, packed.load(*inputs).digest))
    removed, freed = 0, 0
    for folder in sorted(Path(config.paths.runs).glob("*/")):
        if (
            current
            and _fingerprint_in(folder) == current
            and any(folder.glob(f"*{CHECKPOINT}"))
            and not recorded(folder)
        ):
            continue
        try:
            with locks.held(folder, BUSY):
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
