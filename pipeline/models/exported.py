"""The model as it is versioned: model.safetensors, model.json and config.json in models/. Written by train."""

from collections import OrderedDict
from dataclasses import asdict, dataclass
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
from pipeline.engine import loop
from pipeline.loader import augment, center
from pipeline.loader.batches import CenterCrops
from pipeline.models import description, hub, network
from pipeline.models.description import REMEDY, Description, View


@dataclass(frozen=True)
class ExportedModel:
    """The versioned model: what lies in `paths.models`."""

    net: nn.Module
    classes: tuple[str, ...]
    view: View
    arithmetic: Arithmetic = "native"


def center_crops(view: View, sizes: NDArray[np.int32], rows: NDArray[np.int64]) -> CenterCrops:
    """The crops of the given rows [n] that a model sees. `sizes` [N, 2] are the original widths and heights of all
    images."""
    boxes = center.eval_boxes(sizes[rows], view.packed_size, view.resize, view.crop)
    return CenterCrops(rows, boxes, view.crop)


def save_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Write a state dict as safetensors: without metadata, whose key order is not stable."""
    with files.atomic_file(path) as temporary:
        temporary.write_bytes(safetensors.torch.save(weights))  # of a full disk, save_file does not raise OSError


def save(models: Path, weights: dict[str, Tensor], description: Description) -> None:
    """Write model.safetensors, model.json and config.json."""
    save_weights(models / "model.safetensors", weights)
    files.write_json(models / "model.json", asdict(description))
    files.write_json(models / hub.FILE, hub.config(description))


def load(models: Path) -> ExportedModel:
    """Load the versioned model, on the CPU. Raises UserError if there is none, if a file is damaged, or if they do not
    fit together."""
    path, weights = models / "model.json", models / "model.safetensors"
    described = description.load(models)
    if not network.is_known(described.model):  # torchvision has others, of which one would fetch weights
        raise damaged(path, f"model: {described.model!r:.60} is no model of torchvision or timm", REMEDY)
    if (described.mean, described.std) != (augment.MEAN, augment.STD):
        other = f"mean {list(described.mean)}, std {list(described.std)}"
        reason = f"this code has mean {list(augment.MEAN)}, std {list(augment.STD)}"
        remedy = "train again (dvc repro), or use the code that trained it"
        raise UserError(Fault(str(path), other, "differs", reason, remedy=remedy))
    with (
        schema.reading(weights, REMEDY, SafetensorError),
        weights.open("rb"),
    ):  # it tells more than the library
        stored = safetensors.torch.load_file(weights)
    if fault := network.unusable(stored):
        raise damaged(weights, fault, REMEDY)
    model = f"the {described.model} with {len(described.classes)} classes of {path}"
    remedy = "restore both (dvc checkout) or train again (dvc repro)"
    strangers = UserError(Fault(str(weights), f"not the weights of {model}", "differs", remedy=remedy))
    if len(described.classes) not in {len(tensor) for tensor in stored.values() if tensor.ndim > 0}:
        raise strangers  # before a model of so many classes is built
    net = network.build(described.model, len(described.classes), seed=0)
    try:
        loop.load_model_state(net, stored)
    except RuntimeError:
        raise strangers from None
    return ExportedModel(net, described.classes, described.view, described.arithmetic)


class Normalization(nn.Module):
    """Pixels of 0 to 255, normalized as the training normalizes them."""

    def __init__(self) -> None:
        super().__init__()
        mean, scale = augment.normalization(torch.device("cpu"))
        self.register_buffer("mean", mean[:, None, None])
        self.register_buffer("scale", scale[:, None, None])

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean) * self.scale  # type: ignore[operator]


def with_normalization(net: nn.Module) -> nn.Module:
    """The model for pixels of 0 to 255."""
    return nn.Sequential(OrderedDict(normalization=Normalization(), net=net)).eval()


def tensor_differences(claimed: Path, got: Path) -> str:
    """A sentence: how many tensors of two files of weights differ, and the largest difference."""

    def as_bytes(tensor: Tensor) -> Tensor:
        return tensor.reshape(-1).view(torch.uint8)

    try:
        ones, others = safetensors.torch.load_file(got), safetensors.torch.load_file(claimed)
    except SafetensorError as error:
        return f"cannot be compared: {error}"
    names = ones.keys() | others.keys()
    comparable = {
        name
        for name in ones.keys() & others.keys()
        if (ones[name].shape, ones[name].dtype) == (others[name].shape, others[name].dtype)
    }
    unequal = sorted(n for n in comparable if not torch.equal(as_bytes(ones[n]), as_bytes(others[n])))
    sentence = f"{len(unequal)} of {len(names)} tensors differ"
    if unequal:
        largest, name = max(((ones[n].double() - others[n].double()).abs().max().item(), n) for n in unequal)
        sentence += f", by at most {largest:.3g} ({name})"
    if rest := len(names) - len(comparable):
        sentence += f"; {rest} have another shape or dtype, or are in one file only"
    return sentence
