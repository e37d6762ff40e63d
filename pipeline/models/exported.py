"""The model as it is versioned: models/model.safetensors and models/model.json. Written by train, read by the rest."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from pipeline.base import files, schema
from pipeline.base.errors import UserError
from pipeline.loader import augment
from pipeline.models import network


@dataclass(frozen=True)
class View:
    """What a model sees of an image; recorded in model.json. All in pixels."""

    packed_size: schema.Side  # every image is resized to packed_size × packed_size,
    resize: schema.Side  # then seen as if its short side were `resize`,
    crop: schema.Side  # and `crop` × `crop` cut from its centre


@dataclass(frozen=True)
class ExportedModel:
    """The versioned model: what lies in `paths.models`."""

    net: nn.Module
    classes: tuple[str, ...]
    view: View


@dataclass(frozen=True)
class Description:
    """The content of network.json."""

    __pydantic_config__ = schema.STRICT

    model: str
    classes: schema.Names
    view: View
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    export: Literal["last", "best", "ema"]
    epoch: schema.Count


def save_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Write a state dict as safetensors: without metadata, whose key order is not stable."""
    with files.atomic_file(path) as temporary:
        temporary.write_bytes(safetensors.torch.save(weights))  # of a full disk, save_file does not raise OSError


def save(
    models: Path,
    weights: dict[str, Tensor],
    *,
    name: str,
    classes: tuple[str, ...],
    view: View,
    export: str,
    epoch: int,
) -> None:
    """Write the weights, and what they are: the model's name, its classes, what it sees of an image, which epoch."""
    save_weights(models / "model.safetensors", weights)
    files.write_json(
        models / "model.json",
        {
            "model": name,
            "classes": classes,
            "view": asdict(view),
            "mean": augment.MEAN,
            "std": augment.STD,
            "export": export,
            "epoch": epoch,
        },
    )


def load(models: Path) -> ExportedModel:
    """Load the versioned model, on the CPU. Raises UserError if there is none, if a file is damaged, or if they do not
    fit together."""
    path, weights = models / "model.json", models / "model.safetensors"
    remedy = "train a model (dvc repro) or fetch a shared one (dvc pull)"
    described = schema.json_of(path, Description, remedy)
    if fault := _fault(described):
        raise UserError(f"{path}: damaged: {fault}; {remedy}")
    if (described.mean, described.std) != (augment.MEAN, augment.STD):
        raise UserError(
            f"{path}: normalized with mean {list(described.mean)} and std {list(described.std)}; this code has "
            f"{list(augment.MEAN)} and {list(augment.STD)}; train again (dvc repro), or use the code that trained it"
        )
    with (
        schema.reading(weights, remedy, SafetensorError),
        weights.open("rb"),
    ):  # it tells more than the library
        stored = safetensors.torch.load_file(weights)
    strangers = UserError(
        f"{weights}: not the weights of the {described.model} with {len(described.classes)} classes that "
        f"{path} describes; restore both (dvc checkout) or train again (dvc repro)"
    )
    if len(described.classes) not in {len(tensor) for tensor in stored.values() if tensor.ndim > 0}:
        raise strangers  # before a model of so many classes is built
    net = network.build(described.model, len(described.classes), seed=0)
    try:
        network.load_state(net, stored)
    except RuntimeError:
        raise strangers from None
    return ExportedModel(net, described.classes, described.view)


def _fault(described: Description) -> str:
    """What cannot be in a network.json that `save` wrote."""
    view, classes = described.view, described.classes
    if described.model not in network.names():  # torchvision has others, of which one would fetch weights
        return f"model: {described.model!r:.60} is no classification model of torchvision"
    if len(set(classes)) < len(classes):
        return "classes: one is there twice"
    if view.crop > view.resize:
        return f"view: a crop of {view.crop} from {view.resize} pixels"
    return ""
