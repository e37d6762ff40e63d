"""The inputs of a result: settings, locked packages, and the hashes of the files."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base import files, schema
from pipeline.base.files import LOCKED_PACKAGES
from pipeline.config import document
from pipeline.config.params import Params
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures

MODEL = "the model, model.safetensors"
COMPUTE_PACKAGES = (  # packages that decide bytes, in the order in which an image meets them
    "pillow", "pillow-heif", "imagehash", "scipy", "numpy", "numba", "torch", "torchvision", "timm", "safetensors",
    "dvc",
)  # fmt: skip
# A setting that only one data.source reads → this source.
SOURCES = {"data.sha256": "archive", "data.synthetic.count": "synthetic", "data.synthetic.size": "synthetic"}


@dataclass(frozen=True)
class Setting:
    """A setting that can change a byte of the result."""

    name: str
    value: str
    default: str

    @property
    def is_changed(self) -> bool:
        return self.value != self.default


def settings(config: Params, tracked: Mapping[str, Any]) -> list[Setting]:
    """The settings that can change a byte of the result. `tracked`: those that dvc.yaml tracks for the report.

    A setting that another data.source would read, or that has no effect with train.parallel: elastic or on a CPU, is
    left out.
    """
    defaults = dict(document.leaves(Params().model_dump(mode="json")))
    values = dict(document.leaves(config.model_dump(mode="json")))
    return [
        Setting(name, document.value_text(value), document.value_text(defaults[name]))
        for name, value in tracked.items()
        if SOURCES.get(name, config.data.source) == config.data.source and value == values[name]
        if (name, config.train.device) != ("train.backend", "cpu")
    ]


def packages() -> list[tuple[str, str]]:
    """The name and the version of the packages that compute, from the lock."""
    with schema.reading(LOCKED_PACKAGES, f"restore it: git checkout {LOCKED_PACKAGES}"):
        lines = LOCKED_PACKAGES.read_text(encoding="utf-8").splitlines()
    versions: dict[str, list[str]] = {}
    for line in lines:
        if match := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", line):
            versions.setdefault(match[1].lower(), []).append(match[2])
    return [(name, " or ".join(versions[name])) for name in COMPUTE_PACKAGES if name in versions]


def hashes(config: Params) -> list[tuple[str, str]]:
    """The name and the MD5 of each file of the result, as dvc.lock has it."""
    paths = config.paths
    metrics = (figures.HISTORY, figures.PREDICTIONS, figures.FILES[EvalFigures])
    named_paths = [
        (MODEL, Path(paths.models) / "model.safetensors"),
        ("its description, model.json", Path(paths.models) / "model.json"),
        ("the split, split.csv; it has a hash of each image", Path(paths.split)),
        *((name, Path(paths.metrics) / name) for name in metrics),
        ("the locked packages, requirements/lock.txt", LOCKED_PACKAGES),
    ]
    return [(name, files.md5(path)) for name, path in named_paths]
