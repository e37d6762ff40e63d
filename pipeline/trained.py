"""The model as it is versioned: models/model.safetensors and models/model.json. Written by train, read by the rest."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn

from pipeline import augment, files, inference, model
from pipeline.engine.precision import PRECISIONS, allow_tf32
from pipeline.engine.world import World
from pipeline.errors import Refusal
from pipeline.inference import View
from pipeline.residency import Squares


@dataclass(frozen=True)
class Trained:
    """The versioned model: what lies in `paths.models`."""

    net: nn.Module
    classes: tuple[str, ...]
    view: View


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
    """Write the weights, and what they are: the model's name, its classes, what it sees of a picture, which epoch."""
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
    """Load the versioned model, on the CPU. Raises Refusal if there is none, or if its files do not fit together."""
    description, weights = models / "model.json", models / "model.safetensors"
    for path in (description, weights):
        if not path.is_file():
            raise Refusal(f"{path}: not found; train a model (dvc repro) or fetch a shared one (dvc pull)")
    stored = json.loads(description.read_text(encoding="utf-8"))
    if (stored["mean"], stored["std"]) != (list(augment.MEAN), list(augment.STD)):
        raise Refusal(
            f"{description}: normalized with mean {stored['mean']} and std {stored['std']}; this code has "
            f"{list(augment.MEAN)} and {list(augment.STD)}; train again (dvc repro), or use the code that trained it"
        )
    net = model.build(stored["model"], len(stored["classes"]), seed=0)
    try:
        model.load_state(net, safetensors.torch.load_file(weights))
    except (SafetensorError, RuntimeError):
        raise Refusal(
            f"{weights}: not the weights of the {stored['model']} with {len(stored['classes'])} classes that "
            f"{description} describes; restore both (dvc checkout) or train again (dvc repro)"
        ) from None
    return Trained(net, tuple(stored["classes"]), View(**stored["view"]))


def judge(
    trained: Trained,
    squares: Squares,
    sizes: NDArray[np.int32],
    rows: NDArray[np.int64],
    *,
    batch_size: int,
    place: World,
) -> NDArray[np.float64]:
    """The log-probabilities [len(rows), classes] of the given rows (see `inference.logits`), on every process.

    Always in fp32, whatever the model was trained with: the figures belong to the weights that are stored, which are
    fp32, and to whoever uses them. Raises Refusal if one is not a number.
    """
    net, precision = trained.net.to(place.device), PRECISIONS["fp32"](place.device.type)
    allow_tf32(False)  # here no optimizer is there for `prepare`, which says so in training
    logits = inference.logits(net, squares, sizes, rows, trained.view, batch_size, place, precision)
    found: NDArray[np.float64] = torch.log_softmax(logits.double(), 1).numpy()
    if not np.isfinite(found).all():
        raise Refusal("the model's answers are not finite numbers; train again with a lower train.lr (dvc repro)")
    return found
