"""The folder of a run, `runs/<model>-<precision>-<parallel>-<experiment, if any>-<8 digits>/`. Nothing in it is hashed.

    fingerprint          64 hexadecimal digits; the folder's name has the first of them
    checkpoint.pt        the newest checkpoint, and the one before it; removed when the run is finished and recorded
    lock, holder         the lock of the process that trains; its process id, with what it does
    events.out.…         of TensorBoard, one file per attempt
    provenance.json      see provenance.py; it exists when the run has finished

The fingerprint is the digest of everything that changes the bytes of the model (identity.py). A start with the same
fingerprint resumes.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.base import files, locks, schema
from pipeline.config.params import Params
from pipeline.dataset import packed
from pipeline.learning.world import World
from pipeline.running import checkpoint, provenance
from pipeline.versioning import dvc_lock, identity, integrity

CHECKPOINT, FINGERPRINT = "checkpoint.pt", "fingerprint"
DIGITS = 8  # of the fingerprint in a folder's name


@dataclass(frozen=True)
class ModelRecord:
    """The key of provenance.json that this module reads."""

    __pydantic_config__ = schema.OPEN

    model: str  # MD5 of the exported weights


@dataclass(frozen=True)
class Run:
    """A run by its folder."""

    folder: Path
    fingerprint: str  # empty if the folder has none

    @property
    def checkpoint(self) -> Path:
        return self.folder / CHECKPOINT

    @property
    def _provenance(self) -> Path:
        return self.folder / provenance.FILE

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Inside the block no other process trains this run. Raises UserError if one does."""
        with locks.hold(self.folder, "is training this run"):
            yield

    def begin(self) -> None:
        """Prepare the folder for a start, and remove the checkpoints of finished runs.

        They are removed now because dvc.lock may soon record another model. A finished run with a checkpoint resumes.
        """
        for run in list_runs(self.folder.parent):
            run.drop_checkpoint()
        if not self.has_checkpoint():
            self._provenance.unlink(missing_ok=True)
        files.write_text(self.folder / FINGERPRINT, f"{self.fingerprint}\n")

    def finish(self, config: Params, world: World, start_time: float, images: int, kernels: Mapping[str, str]) -> None:
        """Record who trained the model, and remove the checkpoint if it is no longer needed.

        `start_time`, `images` and `kernels` are those of provenance.write. A start that had nothing left to train
        records nothing.
        """
        if images or not self._provenance.is_file():
            provenance.write(self.folder, config, world, start_time, images, kernels)
        self.drop_checkpoint()

    def drop_checkpoint(self) -> None:
        """Remove the checkpoint of a finished run, if it is no longer needed.

        It is needed until dvc.lock records the model: a run that is killed after its last step then resumes at its end.
        Without DVC nothing records the model, so it is removed when the run has finished.
        """
        if self.is_recorded() or (self._provenance.is_file() and integrity.UNDER_DVC not in os.environ):
            checkpoint.remove(self.checkpoint)

    def is_recorded(self) -> bool:
        """Whether the run has finished, and dvc.lock holds its model. Raises UserError if a file is damaged."""
        if not (self._provenance.exists() and dvc_lock.LOCK.exists()):
            return False
        outs = dvc_lock.read().get("train", {}).get("outs", {})
        remedy = f"remove the run: rm -r {self.folder}"
        return schema.json_of(self._provenance, ModelRecord, remedy).model in outs.values()

    def has_checkpoint(self) -> bool:
        """Whether a start can resume: also from the checkpoint before the newest."""
        return any(self.folder.glob(f"*{CHECKPOINT}"))


def list_runs(parent: Path) -> list[Run]:
    """All folders of runs, by name. A folder without a fingerprint is somebody else's: `parent` may be a link."""
    runs = [Run(folder, _read_fingerprint(folder)) for folder in sorted(parent.glob("*/"))]
    return [run for run in runs if run.fingerprint]


def find_run(config: Params, fingerprint: str) -> Run:
    """The run with this fingerprint: the existing one, or a new one, without a folder yet."""
    parent = Path(config.paths.runs)
    same = (run for run in list_runs(parent) if run.fingerprint == fingerprint)
    return next(same, Run(parent / _name(config, fingerprint[:DIGITS]), fingerprint))


def current(config: Params) -> Run:
    """The run of these params and of the inputs in this folder. Raises UserError if an input is missing or damaged."""
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    return find_run(config, identity.digest(identity.training_parts(config, data.digest)))


def _name(config: Params, digits: str) -> str:
    settings = config.train
    experiment = os.environ.get("DVC_EXP_NAME", "")
    parts = (settings.model, settings.precision, settings.parallel, experiment, digits)
    return "-".join(part.replace("/", "-").replace(":", "-") for part in parts if part)


def _read_fingerprint(folder: Path) -> str:
    """The fingerprint of a run's folder; empty if there is none."""
    path = folder / FINGERPRINT
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else ""
