"""What a run leaves beside its outputs, in `runs/<fingerprint>/`; nothing here is ever hashed.

    checkpoint.pt        the working checkpoint, and the one before it; gone when the run is finished and recorded
    lock, pid            held by the process that trains, and its id
    tensorboard/<k>/     the events of the k-th attempt
    provenance.json      who, where, with what, how fast, and the MD5 of the model; there when the run has finished

The fingerprint is over everything that decides the bytes: an equal one resumes.

    python -m pipeline.training.runs --clean   removes the folders of finished runs, and of runs that no start resumes
"""

import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from pipeline.base import dvc_lock, files, integrity, schema
from pipeline.base.errors import UserError, exit_status
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.data import packed
from pipeline.engine import environment
from pipeline.engine.agreement import Facts
from pipeline.engine.world import World
from pipeline.training import checkpoint

ENVIRONMENT = Path("requirements/lock.txt")
CHECKPOINT = "checkpoint.pt"
PROVENANCE = "provenance.json"


def decisive(config: Params, packed_digest: str) -> dict[str, Any]:
    """Everything that decides the bytes: the tracked params, the packed images, the split, and what train depends on.

    That is the code that train imports, the lock and the pins: a comment in another file ends no interrupted run. Files
    stand there with their SHA-256 (hexadecimal).
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
    """SHA-256 (hexadecimal) over what is decisive."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def facts(config: Params, parts: dict[str, Any], world: World) -> Facts:
    """What every process of a training must have alike: what is decisive, and what would hang or mix up the run."""
    whatever = {"node_rank", "rendezvous", "workers", "residency"}  # of one machine, or the same by another name
    kind = "train.parallel: 'elastic' needs processes of one kind; take such, or train.parallel: ddp"
    return {
        "give every node the same params.yaml, then run again": {
            **{f"train.{name}": value for name, value in parts["train"].items()},
            "evaluate.batch_size": parts["evaluate.batch_size"],
            **{f"run.{name}": value for name, value in config.run.model_dump(exclude=whatever).items()},
        },
        "give every node the same data (dvc repro prepare, or a copy), then run again": {
            "SHA-256 of paths.packed": parts["packed"],
            "SHA-256 of paths.split": parts["split"],
            **{f"SHA-256 of {name} in paths.weights": digest for name, digest in parts["weights"].items()},
        },
        "check out the same commit on every node, then run again": parts["files"],
        "install the same packages on every node (requirements/lock.txt, or the image), then run again": versions(),
        "set it alike on every node, or unset it, then run again": environment.numeric_variables(
            environment.at_start()
        ),
        # Else the bits of an elastic run would depend on who takes which shard.
        kind: hardware(world, config.train.threads) if config.train.parallel == "elastic" else {},
    }


def versions() -> dict[str, str]:
    """What computes, and in which version."""
    cuda = torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "libc": "-".join(platform.libc_ver()),
        **{name: metadata.version(name) for name in ("numpy", "numba", "torchvision")},
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version()) if cuda else "",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else "",
    }


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run's folder. Raises UserError if another process holds it; what a dead one held is free.

    Raises OSError, with the file's name, where the file system has no locks. A file that only stands for a lock would
    outlive its holder, so none is taken instead.
    """
    folder.mkdir(parents=True, exist_ok=True)
    holder, lock = folder / "pid", FileLock(folder / "lock", timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        pid = holder.read_text().strip() if holder.exists() else "unknown"
        raise UserError(
            f"{folder}: process {pid} is training this very run; wait for it, or end it, then run again"
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
    """What is read of a provenance.json."""

    __pydantic_config__ = schema.OPEN

    model: str  # MD5 of the exported weights


def recorded(folder: Path) -> bool:
    """Whether the run has finished, and dvc.lock holds its model. Raises UserError if one of the files is damaged."""
    described = folder / PROVENANCE
    if not (described.exists() and dvc_lock.LOCK.exists()):
        return False
    outs = dvc_lock.read().get("train", {}).get("outs", {})
    return schema.json_of(described, Finished, f"it is worth nothing without: rm -r {folder}").model in outs.values()


def drop_finished_checkpoint(folder: Path) -> None:
    """Remove the checkpoint of a finished run once nothing is lost with it: its model is recorded, or no DVC is there
    to do so. Until then a run that was killed after its last step goes on from its end instead of its beginning."""
    if recorded(folder) or ((folder / PROVENANCE).is_file() and integrity.UNDER_DVC not in os.environ):
        checkpoint.remove(folder / CHECKPOINT)


def drop_finished_checkpoints(runs: Path) -> None:
    """The same for every run."""
    for folder in sorted(runs.glob("*/")):
        drop_finished_checkpoint(folder)


def prepare_run(folder: Path) -> None:
    """Make the folder ready for a start: what is still there of a finished run's checkpoint is to be gone on from."""
    drop_finished_checkpoints(
        folder.parent
    )  # dvc.lock may soon hold another model, and no longer say that this one was recorded
    if not any(folder.glob(f"*{CHECKPOINT}")):
        (folder / PROVENANCE).unlink(missing_ok=True)


def hardware(world: World, threads: int) -> dict[str, Any]:
    """What must not change between the two halves of a resumed run."""
    cuda = world.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(world.device) if cuda else _cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        **environment.numeric_variables(environment.at_start()),
    }


def tensorboard_folder(folder: Path) -> Path:
    """A TensorBoard folder that no earlier attempt used."""
    boards = folder / "tensorboard"
    return boards / str(len(list(boards.iterdir())) if boards.is_dir() else 0)


def write_provenance(folder: Path, config: Params, world: World, started: float, images: int) -> None:
    """Write provenance.json, the one file with times, hosts and versions. `images`: trained on since `started`
    (time.monotonic()).

    The exported model is already written.
    """
    cuda = world.device.type == "cuda"
    seconds = time.monotonic() - started  # the clock of the day can be set meanwhile
    files.write_json(
        folder / PROVENANCE,
        {
            "model": files.md5(Path(config.paths.models) / "model.safetensors"),
            "git": {"commit": _git("rev-parse", "HEAD"), "changed": _git("status", "--porcelain").splitlines()},
            "lock": files.sha256(ENVIRONMENT),
            "image": os.environ.get("PERENNIAL_IMAGE", ""),
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "versions": versions(),
            **hardware(world, config.train.threads),
            "bytes_promised": config.train.deterministic,
            "launcher": config.run.launcher,
            "processes": world.size,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(seconds, 3),
            "images_per_second": round(images / seconds, 1),
            "gpu_memory": torch.cuda.max_memory_allocated() if cuda else 0,
        },
    )


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _git(*command: str) -> str:
    """What git says, or nothing where there is no git or no repository: provenance must not fail a run."""
    try:
        return subprocess.run(["git", *command], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def clean(config: Params) -> str:
    """Remove what no start with these params would resume and no living process holds; says what it freed."""
    inputs = (Path(config.paths.packed), Path(config.paths.split))
    current = ""  # nothing is packed, so nothing can be resumed
    if all(path.exists() for path in inputs):  # a damaged one is refused: who knows what it would resume
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
