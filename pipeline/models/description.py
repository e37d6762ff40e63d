"""The content of models/model.json, which describes the model; without torch, which takes seconds to import.

The metadata of model.onnx has a part of it. Both are read by the same schema.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pipeline.base import schema
from pipeline.base.errors import damaged
from pipeline.base.text import in_words
from pipeline.config.params import WHOLE, Arithmetic, Fit, Grey, Params

REMEDY = "train a model (perennial repro) or fetch a shared one (dvc pull)"

INPUT, OUTPUT = "pixels", "logits"  # of model.onnx


@dataclass(frozen=True)
class View:
    """The part of an image that a model sees; recorded in model.json and in model.onnx. Sides in pixels."""

    __pydantic_config__ = schema.STRICT

    packed_size: schema.Side  # every image becomes packed_size × packed_size, as `fit` says,
    resize: schema.Side  # then seen as if its short side were `resize`,
    crop: schema.Side  # and `crop` × `crop` cut from its centre
    grey: Grey = "full"  # how 16-bit grey is scaled; older files do not have it
    fit: Fit = "none"  # how an image becomes a square; older files do not have it

    def __post_init__(self) -> None:
        """Raise ValueError for a crop larger than the image."""
        if self.crop > self.resize:
            raise ValueError(f"a crop of {self.crop} from {self.resize} pixels")

    @classmethod
    def from_params(cls, config: Params) -> "View":
        """The view of a model that is trained with these params."""
        prepare, train = config.prepare, config.train
        resize = train.eval_crop if prepare.fit in WHOLE else train.eval_resize
        return cls(prepare.size, resize, train.eval_crop, prepare.grey, prepare.fit)


@dataclass(frozen=True)
class Description:
    """The content of model.json."""

    __pydantic_config__ = schema.STRICT

    model: str
    classes: schema.Names
    view: View
    mean: tuple[float, float, float]
    std: tuple[schema.Deviation, schema.Deviation, schema.Deviation]
    export: Literal["last", "best", "ema"]
    epoch: schema.Count
    arithmetic: Arithmetic = "native"  # of the training; evaluate and predict use it too; older files do not have it
    weights: schema.Sha256 | Literal[""] = ""  # of model.safetensors, which is refused if it has another hash; as above


def check_keys(models: Path) -> None:
    """Raise UserError if model.json lacks a key that older versions did not write.

    Without `weights` nothing says of which model.safetensors it is.
    """
    path, content = models / "model.json", load(models)
    raw = json.loads(path.read_bytes())
    lacking = [*(asdict(content).keys() - raw.keys()), *(asdict(content.view).keys() - raw["view"].keys())]
    if lacking or not content.weights:
        names = in_words(sorted(lacking) or ["weights"])
        raise damaged(path, f"it has no {names}, and no dvc.lock says that it is whole", REMEDY)


def load(models: Path) -> Description:
    """The content of model.json in the folder `models`. Raises UserError if there is none, or if it is damaged."""
    return schema.json_of(models / "model.json", Description, REMEDY)
