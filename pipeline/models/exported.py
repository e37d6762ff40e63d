"""The model as it is versioned: model.safetensors, model.json and config.json in models/. Written by train."""

from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn

from pipeline.base import files, schema
from pipeline.base.errors import Fault, UserError, damaged
from pipeline.config.params import Arithmetic
from pipeline.dataset.normalization import Normalization
from pipeline.loader import center
from pipeline.loader.batches import CenterCrops
from pipeline.models import description, hub, network
from pipeline.models.description import REMEDY, Description, View

RESTORE = "restore both: perennial repro (or dvc checkout), or copy the folder again"


@dataclass(frozen=True)
class ExportedModel:
    """The versioned model: what lies in `paths.models`."""

    net: nn.Module
    classes: tuple[str, ...]
    view: View
    normalization: Normalization
    arithmetic: Arithmetic = "native"
    weights: str = ""  # SHA-256 of model.safetensors; empty for a model that was not loaded


def center_crops(
    view: View, sizes: NDArray[np.int32], rows: NDArray[np.int64], normalization: Normalization
) -> CenterCrops:
    """The crops that a model sees of the images `rows` [n]. `sizes` [N, 2]: original width and height of each image."""
    boxes = center.eval_boxes(sizes[rows], view.packed_size, view.resize, view.crop)
    return CenterCrops(rows, boxes, view.crop, normalization)


def save_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Write a state dict as safetensors: without metadata, whose key order is not stable."""
    with files.atomic_file(path) as temporary:
        temporary.write_bytes(safetensors.torch.save(weights))  # on a full disk, save_file does not raise OSError


def save(models: Path, weights: dict[str, Tensor], description: Description) -> None:
    """Write model.safetensors, model.json and config.json."""
    save_weights(path := models / "model.safetensors", weights)
    files.write_json(models / "model.json", asdict(replace(description, weights=files.sha256(path))))
    files.write_json(models / hub.FILE, hub.config(description))


def load(models: Path) -> ExportedModel:
    """The versioned model, on the CPU.

    Raises UserError if there is none, if a file is damaged, or if the weights do not fit model.json.
    """
    path, weights = models / "model.json", models / "model.safetensors"
    model_json = description.load(models)
    if not network.is_known(model_json.model):  # torchvision has others, of which one would fetch weights
        raise damaged(path, f"model: {model_json.model!r:.60} is no model of torchvision or timm", REMEDY)
    with schema.reading(weights, REMEDY, SafetensorError), weights.open("rb"):  # open raises a clearer error
        digest = files.sha256(weights)
        if model_json.weights not in ("", digest):
            raise UserError(Fault(str(weights), f"another file than {path} names", "damaged", remedy=RESTORE))
        tensors = safetensors.torch.load_file(weights)
    if fault := network.weights_fault(tensors):
        raise damaged(weights, fault, REMEDY)
    model = f"the {model_json.model} with {len(model_json.classes)} classes of {path}"
    other_weights = UserError(Fault(str(weights), f"not the weights of {model}", "differs", remedy=RESTORE))
    counts = {len(tensor) for tensor in tensors.values() if tensor.ndim > 0}
    if len(model_json.classes) not in counts and "@" not in model_json.model:  # the user's own has any shapes
        raise other_weights  # before a model of so many classes is built
    net = network.build(model_json.model, len(model_json.classes), seed=0)
    try:
        network.load_model_state(net, tensors)
    except RuntimeError:
        raise other_weights from None
    normalization = Normalization(model_json.mean, model_json.std)
    return ExportedModel(net, model_json.classes, model_json.view, normalization, model_json.arithmetic, digest)


class Normalizing(nn.Module):
    """Pixels of 0 to 255, normalized as the training normalizes them."""

    def __init__(self, normalization: Normalization) -> None:
        super().__init__()
        mean, scale = normalization.on(torch.device("cpu"))
        self.register_buffer("mean", mean[:, None, None])
        self.register_buffer("scale", scale[:, None, None])

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean) * self.scale  # type: ignore[operator]


def with_normalization(net: nn.Module, normalization: Normalization) -> nn.Module:
    """The model for pixels of 0 to 255."""
    return nn.Sequential(OrderedDict(normalization=Normalizing(normalization), net=net)).eval()
