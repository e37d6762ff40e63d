"""The model as it is versioned: models/model.safetensors and models/model.json. Written by train, read by the rest."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn

from pipeline import augment, files, inference, model, reading
from pipeline.engine.distributed import World
from pipeline.engine.precision import PRECISIONS, allow_tf32
from pipeline.errors import UserError
from pipeline.inference import View
from pipeline.residency import ImageStore


@dataclass(frozen=True)
class Trained:
    """The versioned model: what lies in `paths.models`."""

    net: nn.Module
    classes: tuple[str, ...]
    view: View


@dataclass(frozen=True)
class Description:
    """The content of model.json."""

    __pydantic_config__ = reading.STRICT

    model: str
    classes: reading.Names
    view: View
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    export: Literal["last", "best", "ema"]
    epoch: reading.Count


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


def load(models: Path) -> Trained:
    """Load the versioned model, on the CPU. Raises UserError if there is none, if a file is damaged, or if they do not
    fit together."""
    path, weights = models / "model.json", models / "model.safetensors"
    remedy = "train a model (dvc repro) or fetch a shared one (dvc pull)"
    described = reading.json_of(path, Description, remedy)
    if fault := _fault(described):
        raise UserError(f"{path}: damaged: {fault}; {remedy}")
    if (described.mean, described.std) != (augment.MEAN, augment.STD):
        raise UserError(
            f"{path}: normalized with mean {list(described.mean)} and std {list(described.std)}; this code has "
            f"{list(augment.MEAN)} and {list(augment.STD)}; train again (dvc repro), or use the code that trained it"
        )
    with (
        reading.ours(weights, remedy, SafetensorError),
        weights.open("rb"),
    ):  # it tells more than the library
        stored = safetensors.torch.load_file(weights)
    strangers = UserError(
        f"{weights}: not the weights of the {described.model} with {len(described.classes)} classes that "
        f"{path} describes; restore both (dvc checkout) or train again (dvc repro)"
    )
    if len(described.classes) not in {len(tensor) for tensor in stored.values() if tensor.ndim > 0}:
        raise strangers  # before a model of so many classes is built
    net = model.build(described.model, len(described.classes), seed=0)
    try:
        model.load_state(net, stored)
    except RuntimeError:
        raise strangers from None
    return Trained(net, described.classes, described.view)


def _fault(described: Description) -> str:
    """What cannot be in a model.json that `save` wrote."""
    view, classes = described.view, described.classes
    if described.model not in model.names():  # torchvision has others, of which one would fetch weights
        return f"model: {described.model!r:.60} is no classification model of torchvision"
    if len(set(classes)) < len(classes):
        return "classes: one is there twice"
    if view.crop > view.resize:
        return f"view: a crop of {view.crop} from {view.resize} pixels"
    return ""


def predict_log_probs(
    trained: Trained,
    image_store: ImageStore,
    sizes: NDArray[np.int32],
    rows: NDArray[np.int64],
    *,
    batch_size: int,
    world: World,
) -> NDArray[np.float64]:
    """The log-probabilities [len(rows), classes] of the given rows (see `inference.logits`), on every process.

    Always in fp32, whatever the model was trained with: the figures belong to the weights that are stored, which are
    fp32, and to whoever uses them. Raises UserError if one is not a number.
    """
    net, precision = trained.net.to(world.device), PRECISIONS["fp32"](world.device.type)
    allow_tf32(False)  # here no optimizer is there for `prepare`, which says so in training
    logits = inference.logits(net, image_store, sizes, rows, trained.view, batch_size, world, precision)
    found: NDArray[np.float64] = torch.log_softmax(logits.double(), 1).numpy()
    if not np.isfinite(found).all():
        raise UserError("the model's answers are not finite numbers; train again with a lower train.lr (dvc repro)")
    return found
