"""What decided the result: the settings, the locked packages, and the hashes of the files."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base import files, schema
from pipeline.config import document, identity
from pipeline.config.params import Params
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures

LOCK = Path("requirements/lock.txt")
MODEL = "the model, model.safetensors"
COMPUTING = (  # packages that decide bytes, in the order in which an image meets them
    "pillow", "pillow-heif", "imagehash", "scipy", "numpy", "numba", "torch", "torchvision", "timm", "safetensors",
    "dvc",
)  # fmt: skip
SOURCES = {"data.sha256": "archive", "data.synthetic.count": "synthetic", "data.synthetic.size": "synthetic"}  # readers


@dataclass(frozen=True)
class Setting:
    """A setting that can change a byte of the result."""

    name: str
    value: str
    default: str

    @property
    def is_changed(self) -> bool:
        return self.value != self.default


def settings(config: Params) -> list[Setting]:
    """The settings that can change a byte of the result: those that dvc.yaml tracks for the report, in its order.

    A setting that another data.source would read, or that has no effect with train.parallel: elastic, is left out.
    """
    defaults = dict(document.leaves(Params().model_dump(mode="json")))
    values = dict(document.leaves(config.model_dump(mode="json")))
    return [
        Setting(name, _text(value), _text(defaults[name]))
        for name, value in identity.settings(config, ["report"]).items()
        if SOURCES.get(name, config.data.source) == config.data.source and value == values[name]
    ]


def _text(value: Any) -> str:
    """A value as params.yaml has it, in one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def packages() -> list[tuple[str, str]]:
    """Name and version of the packages that compute, as the lock has them."""
    with schema.reading(LOCK, f"restore it: git checkout {LOCK}"):
        lines = LOCK.read_text(encoding="utf-8").splitlines()
    found: dict[str, list[str]] = {}
    for line in lines:
        if match := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", line):
            found.setdefault(match[1].lower(), []).append(match[2])
    return [(name, " or ".join(found[name])) for name in COMPUTING if name in found]


def hashes(config: Params) -> list[tuple[str, str]]:
    """The MD5 of each file that the result consists of. So dvc.lock names them."""
    paths = config.paths
    of_metrics = (figures.HISTORY, figures.PREDICTIONS, figures.FILES[EvalFigures])
    found = [
        (MODEL, Path(paths.models) / "model.safetensors"),
        ("its description, model.json", Path(paths.models) / "model.json"),
        ("the split, split.csv; it has a hash of each image", Path(paths.split)),
        *((name, Path(paths.metrics) / name) for name in of_metrics),
        ("the locked packages, requirements/lock.txt", LOCK),
    ]
    return [(name, files.md5(path)) for name, path in found]
