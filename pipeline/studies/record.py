"""The file with the result of a study of all folds: its params, its figures, and the hashes of its outputs.

A study with the same params on the same images by the same commit has the same file, byte for byte, on a machine of the
same kind. The recipes in results/recipes/ are such files.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.base import files, schema, threads
from pipeline.config.params import Params
from pipeline.sources.originals import Originals
from pipeline.versioning import identity, programs
from pipeline.versioning.dvc_lock import Hashes

RECIPES = Path("results/recipes")
DEMO = Path("results/demo")  # the recorded run of `perennial demo`: its params, its dvc.lock, and its figures
CODE = ("pipeline", "requirements", "docker", "dvc.yaml", "data/mine")  # what a run is made by
VARIED = {"split.fold", "train.seed"}  # what a study sets itself
STAGES = ("split", "prepare", "train", "evaluate")
MOST_SHOWN = 5


@dataclass(frozen=True)
class Origin:
    """What a run was made of and by. An empty text: not recorded, or without a commit of Git."""

    __pydantic_config__ = schema.STRICT

    images: str = ""  # the digest of all files of the unpacked images, see `digest`
    commit: str = ""  # followed by "-dirty" if the code was not as in it
    hardware: str = ""  # device and CPU capability of the trainings, as their provenance.json names them


@dataclass(frozen=True)
class Part:
    """One training of a study: its test images, and the MD5 of the model and of the answers, as in dvc.lock."""

    __pydantic_config__ = schema.STRICT

    seed: int
    fold: int
    images: schema.Count
    right: int
    model: str
    predictions: str


@dataclass(frozen=True)
class Record:
    """The content of the file."""

    __pydantic_config__ = schema.STRICT

    params: dict[str, Any]  # dotted key → value
    data: Hashes  # the split of each fold: split.csv has a hash of each image
    figures: dict[str, float]
    parts: tuple[Part, ...]
    origin: Origin = Origin()

    @property
    def seeds(self) -> list[int]:
        return sorted({part.seed for part in self.parts})


def decisive(config: Params) -> dict[str, Any]:
    """The params that decide the figures, by dotted key. What varies within a study is left out."""
    return identity.settings(config, STAGES, VARIED)


def digest(images: Originals, workers: int) -> str:
    """The SHA-256 of what `sha256sum` prints for all files, sorted by name: however they were packed, it is the same.

    Hidden files do not count. In the folder with the class folders, a shell gives the same:
    find . -type f -not -path '*/.*' -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
    """

    def line(name: str) -> str:
        return f"{images.hashes.get(name) or files.sha256(images.root / name)}  {name}\n"

    names = images.entries()
    lines = "".join(threads.ordered_map(line, sorted(names), workers, "hashes"))
    return hashlib.sha256(lines.encode()).hexdigest()


def commit() -> str:
    """The commit of the project in the current folder, for an Origin. Ask before a run copies the project."""
    return programs.code_version(*CODE)


def read(path: Path) -> Record:
    """The record in a file. Raises UserError if it is missing or damaged.

    A setting that came after the record has its default value.
    """
    record = schema.json_of(path, Record, f"allowed: a file as in {RECIPES}/; restore it: git checkout {path}")
    return replace(record, params=decisive(Params()) | record.params)


def write(path: Path, record: Record) -> None:
    """Write the file."""
    files.write_json(path, asdict(record))


def differences(expected: Record, actual: Record) -> Iterator[str]:
    """Sentences that say in what two records differ; none if they are the same. Their origin is not compared."""

    def by_training(record: Record, name: str) -> dict[str, Any]:
        return {f"seed {part.seed} fold {part.fold}": getattr(part, name) for part in record.parts}

    kinds: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        "params": (expected.params, actual.params),
        "images or their split": (expected.data, actual.data),
        "models": (by_training(expected, "model"), by_training(actual, "model")),
        "answers": (by_training(expected, "predictions"), by_training(actual, "predictions")),
    }
    for kind, (old, new) in kinds.items():
        if differing := [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]:
            more = ", …" if len(differing) > MOST_SHOWN else ""
            yield f"other {kind}: {', '.join(differing[:MOST_SHOWN])}{more}"
