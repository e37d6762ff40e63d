"""Pretrained weights: from what people have (.pth, .pt, .safetensors) to one safe format, and from there into a model.

The stage download converts, so that what no model could use is refused before hours of work; train only loads.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import safetensors.torch
import torch
import torchvision
from safetensors import SafetensorError
from torch import Tensor, nn

from pipeline.base import files, schema
from pipeline.base.errors import UserError

FORMATS = (".pth", ".pt", ".safetensors")
WRAPPED_IN = ("state_dict", "model")  # keys under which training scripts keep the weights
OF_DDP = "module."
NAMED = 5  # how many tensors a refusal names

# torchvision published some weights before it renamed parts of their models: densely connected layers, and the
# perceptrons of vision transformers. (Its own loaders translate these too.)
OLD_NAMES = (
    (re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)"), r"\1\2"),
    (re.compile(r"(encoder_layer_\d+\.mlp\.)linear_1\."), r"\g<1>0."),
    (re.compile(r"(encoder_layer_\d+\.mlp\.)linear_2\."), r"\g<1>3."),
)
AUXILIARY_HEAD = re.compile(r"(aux1|aux2|AuxLogits)\.")  # of GoogLeNet and Inception; our models have none


def published(model: str) -> tuple[str, str]:
    """The address of torchvision's default weights of a model, and what their SHA-256 begins with."""
    url: str = torchvision.models.get_model_weights(model).DEFAULT.url
    return url, hash_prefix(url)


def hash_prefix(url: str) -> str:
    """The 8 or more digits of the SHA-256 in a name like resnet18-f37072fd.pth. Raises UserError if there are none."""
    found = re.search(r"^https://.*-([0-9a-f]{8,64})\.pth$", url)
    if not found:
        raise UserError(
            f"train.weights: imagenet would be fetched from {url!r}, which cannot be checked; allowed: an https:// "
            f"address of a .pth file with 8 or more digits of its SHA-256 in its name; fetch and name a file instead"
        )
    return found[1]


def convert(source: Path, target: Path) -> list[str]:
    """Write the weights in `source` to `target`: safetensors, without metadata, by the names torchvision has today.

    Returns a sentence for each change. Raises UserError if `source` is missing, or is no file of weights.
    """
    tensors, notes = _read(source), []
    if all(name.startswith(OF_DDP) for name in tensors):
        tensors = {name.removeprefix(OF_DDP): tensor for name, tensor in tensors.items()}
        notes.append(f"{source.name}: names without the {OF_DDP!r} that DistributedDataParallel puts before them")
    if auxiliary := [name for name in tensors if AUXILIARY_HEAD.match(name)]:
        notes.append(f"{source.name}: {len(auxiliary)} tensors of auxiliary heads left out; the models here have none")
    with files.atomic_file(target) as temporary:
        safetensors.torch.save_file(
            {_new_name(name): tensors[name].clone().contiguous() for name in sorted(tensors.keys() - set(auxiliary))},
            temporary,
        )
    return notes


def load_into(net: nn.Module, path: Path, head: nn.Module) -> str:
    """Load a file that `convert` wrote into a model. Returns a sentence that says what was loaded.

    If the file's head has another number of classes, the model's own `head` stays as it is. Raises UserError, with the
    first names, if any other tensor is missing, not of this model, or of another shape.
    """
    with schema.reading(path, schema.checkout(path.parent), SafetensorError), path.open("rb"):
        own, theirs = net.state_dict(), safetensors.torch.load_file(path)
    name = next(name for name, module in net.named_modules() if module is head)
    of_head = [f"{name}.{part}" for part in head.state_dict()]
    said = f"{path}: {len(theirs)} tensors loaded"
    if _other_classes(own, theirs, of_head):
        classes = (len(theirs[of_head[0]]), len(own[of_head[0]]))
        said += f", but for the head {name!r} ({classes[0]} classes there, {classes[1]} here): it begins afresh"
        theirs |= {part: own[part] for part in of_head}
    if faults := _faults(own, theirs):
        more = f" and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
        raise UserError(
            f"train.weights: {path} does not fit the model: {', '.join(faults[:NAMED])}{more}; "
            f"allowed: weights of train.model, whose head may have other classes; or none"
        )
    own.update(theirs)  # so it keeps what old files do not count, and the versions that MNASNet asks for
    net.load_state_dict(own)
    return said


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors in a file, by name. No code in it is run."""
    if path.suffix not in FORMATS:
        raise UserError(
            f"train.weights: {str(path)!r} has no known format; allowed: none, imagenet, {', '.join(FORMATS)}"
        )
    if not path.is_file():
        raise UserError(f"train.weights: {str(path)!r}: there is no such file; allowed: none, imagenet, a file's path")
    try:
        if path.suffix == ".safetensors":
            return dict(safetensors.torch.load_file(path))
        found = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:
        raise UserError(
            f"train.weights: {path} holds Python objects besides tensors, or is damaged; reading it could run code; "
            f"allowed: tensors alone; where you trust it, load it once and save its model.state_dict() with torch.save"
        ) from None
    except (SafetensorError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).partition("\n")[0] or "it ends too early"
        raise UserError(f"train.weights: {path} cannot be read: {reason}; get the whole file again") from None
    return _tensors(path, found)


def _tensors(path: Path, found: Any) -> dict[str, Tensor]:
    """The weights in what a training script saved: a dict of tensors, bare or under a usual key."""
    for key in WRAPPED_IN:
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not (isinstance(found, dict) and found and all(isinstance(value, Tensor) for value in found.values())):
        keys = ", ".join(map(str, list(found)[:NAMED])) or "nothing in it" if isinstance(found, dict) else ""
        raise UserError(
            f"train.weights: {path} holds {f'a dict with {keys}' if keys else 'no dict'}; "
            f"allowed: a dict of tensors by name, bare or under {' or '.join(map(repr, WRAPPED_IN))}"
        )
    return found


def _new_name(name: str) -> str:
    for pattern, replacement in OLD_NAMES:
        name = pattern.sub(replacement, name)
    return name


def _other_classes(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor], of_head: list[str]) -> bool:
    """Whether two heads differ in their number of classes, the first axis, and in nothing else."""
    if not all(part in theirs and theirs[part].ndim > 0 for part in of_head):
        return False
    return all(theirs[part].shape[1:] == own[part].shape[1:] for part in of_head) and any(
        len(theirs[part]) != len(own[part]) for part in of_head
    )


def _faults(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> list[str]:
    """What keeps `theirs` from being loaded where `own` is. Files from before torch 0.4.1 count no batches: allowed."""
    missing = sorted(name for name in own.keys() - theirs.keys() if not name.endswith("num_batches_tracked"))
    return [
        *(f"{name} is missing" for name in missing),
        *(f"{name} is not of this model" for name in sorted(theirs.keys() - own.keys())),
        *(
            f"{name} has shape {list(theirs[name].shape)}, not {list(own[name].shape)}"
            for name in own
            if name in theirs and theirs[name].shape != own[name].shape
        ),
    ]
