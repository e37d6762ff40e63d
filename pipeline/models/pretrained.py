"""Pretrained weights: convert a user's file (.pth, .pt, .safetensors) to safetensors, and load that into a model.

The stage weights converts, so an unusable file is refused before hours of work. The stage train only loads.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torchvision
from safetensors import SafetensorError
from torch import Tensor, nn

from pipeline.base import errors, files, schema
from pipeline.base.errors import Fault, Kind, UserError
from pipeline.models import network

FORMATS = (".pth", ".pt", ".safetensors")
WRAPPED_IN = ("state_dict", "model")  # keys under which training scripts save the weights
DDP_PREFIX = "module."  # DistributedDataParallel puts it before every name
CLASSES = "classes"  # the key of a .safetensors file's metadata with the names of the head's classes, as JSON
MOST_NAMED = 5  # tensors in one error message

# torchvision published some weights before it renamed parts of their models: the dense layers of DenseNet, and the MLPs
# of vision transformers. Its own loaders translate these names too.
OLD_NAMES = (
    (re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)"), r"\1\2"),
    (re.compile(r"(encoder_layer_\d+\.mlp\.)linear_1\."), r"\g<1>0."),
    (re.compile(r"(encoder_layer_\d+\.mlp\.)linear_2\."), r"\g<1>3."),
)
AUXILIARY_HEAD = re.compile(r"(aux1|aux2|AuxLogits)\.")  # in GoogLeNet and Inception; the models here have none


def published(model: str) -> tuple[str, str]:
    """The address of torchvision's default weights of a model, and the first digits of their SHA-256."""
    url: str = torchvision.models.get_model_weights(model).DEFAULT.url
    return url, hash_prefix(url)


def hash_prefix(url: str) -> str:
    """The digits of the SHA-256 (8 or more) in a name like resnet18-f37072fd.pth. Raises UserError without them."""
    match = re.search(r"^https://.*-([0-9a-f]{8,64})\.pth$", url)
    if not match:
        reason = f"it would be fetched from {url!r}, which cannot be checked"
        allowed = "an https:// address of a .pth file with 8 or more digits of its SHA-256 in its name"
        raise _refusal("imagenet", "value", reason, allowed, "fetch and name a file instead")
    return match[1]


def convert(source: Path, target: Path) -> list[str]:
    """Write the weights of `source` to `target` as safetensors, with torchvision's present names.

    Of metadata only the names of the classes stay. Returns one sentence per change. Raises UserError if `source` is
    missing, or is not a file of a model's weights.
    """
    tensors, notes, classes = _read(source), list[str](), tuple[str, ...]()
    if source.suffix == ".safetensors":
        with schema.reading(source, f"write {CLASSES!r} as a JSON list of names, or leave it out"):
            classes = classes_of(source)
    if all(name.startswith(DDP_PREFIX) for name in tensors):
        tensors = {name.removeprefix(DDP_PREFIX): tensor for name, tensor in tensors.items()}
        notes.append(f"{source.name}: the prefix {DDP_PREFIX!r} of DistributedDataParallel removed from all names")
    if auxiliary := [name for name in tensors if AUXILIARY_HEAD.match(name)]:
        notes.append(f"{source.name}: {len(auxiliary)} tensors of auxiliary heads left out; the models here have none")
    with _refused(source):
        content = _content(
            {_new_name(name): tensors[name] for name in sorted(tensors.keys() - set(auxiliary))}, classes
        )
    with files.atomic_file(target) as temporary:
        temporary.write_bytes(content)
    return notes


def save(path: Path, tensors: Mapping[str, Tensor], classes: Sequence[str]) -> None:
    """Write weights as safetensors. `classes`: the names of the head's classes in their order; empty if not known."""
    path.write_bytes(_content(tensors, classes))  # of a full disk, save_file does not raise OSError


def _content(tensors: Mapping[str, Tensor], classes: Sequence[str]) -> bytes:
    """The bytes of a .safetensors file."""
    metadata = {CLASSES: json.dumps(list(classes))} if classes else None  # with one key, its order is stable
    separate = {name: value.clone().contiguous() for name, value in tensors.items()}
    return bytes(safetensors.torch.save(separate, metadata))


def classes_of(path: Path) -> tuple[str, ...]:
    """The names of the head's classes in a .safetensors file; empty if the file does not name them."""
    with safetensors.safe_open(path, "pt") as content:
        named = json.loads((content.metadata() or {}).get(CLASSES, "[]"))
    if not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
        raise ValueError(f"{CLASSES!r} in its metadata is not a list of names")
    return tuple(named)


def load_into(net: nn.Module, path: Path, head: nn.Module, classes: Sequence[str] = ()) -> str:
    """Load a file written by `convert` into a model; one sentence about what was loaded.

    If the file names the classes of its head, each of the model's `classes` gets the part of the head with its name. If
    it does not, and the head in the file has another number of classes, the `head` of the model is not changed. Raises
    UserError if any other tensor is missing, unknown to the model, or of another shape. It has the first names.
    """
    with schema.reading(path, schema.checkout(path.parent), SafetensorError), path.open("rb"):
        state, loaded, named = net.state_dict(), safetensors.torch.load_file(path), classes_of(path)
    if fault := network.unusable(loaded):
        raise errors.damaged(path, fault, schema.checkout(path.parent))
    name = next(name for name, module in net.named_modules() if module is head)
    head_names = [f"{name}.{part}" for part in head.state_dict()]
    note = f"{path}: {len(loaded)} tensors loaded"
    if named and any(loaded[part].shape[:1] != (len(named),) for part in head_names if part in loaded):
        reason = f"its metadata names {len(named)} classes, its head {name!r} has another number"
        raise _refusal(path, "damaged", reason, remedy="write the names of all its classes, or none")
    if named and named != tuple(classes) and _same_but_for_classes(state, loaded, head_names):
        known = [label for label in classes if label in named]
        loaded |= {part: _by_class(state[part], loaded[part], classes, named) for part in head_names}
        new = ", ".join(repr(label) for label in classes if label not in named)
        note += f"; of the head {name!r}, the parts of {len(known)} classes" + (f"; untrained: {new}" if new else "")
    elif _other_classes(state, loaded, head_names):
        there, here = len(loaded[head_names[0]]), len(state[head_names[0]])
        note += f", except the head {name!r} ({there} classes there, {here} here): it starts untrained"
        loaded |= {part: state[part] for part in head_names}
    if faults := _faults(state, loaded):
        more = f" and {len(faults) - MOST_NAMED} more" if len(faults) > MOST_NAMED else ""
        reason = f"it does not fit the model: {', '.join(faults[:MOST_NAMED])}{more}"
        raise _refusal(path, "pair", reason, "weights of train.model (only the number of classes may differ), or none")
    state.update(loaded)  # keeps num_batches_tracked, which old files lack, and the versions that MNASNet needs
    net.load_state_dict(state)
    return note


def _read(path: Path) -> dict[str, Tensor]:
    """Name → tensor of a file. No code in the file is run."""
    if path.suffix not in FORMATS:
        raise _refusal(path, "value", "no known format", f"none, imagenet, {', '.join(FORMATS)}")
    if not path.is_file():
        raise _refusal(path, "missing", "there is no such file", "none, imagenet, a file's path")
    with _refused(path):
        if path.suffix == ".safetensors":
            content = safetensors.torch.load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    tensors = _tensors(path, content)
    with _refused(path):
        fault = network.unusable(tensors)
    if fault:
        allowed = "tensors of real, finite numbers by name"
        raise _refusal(path, "damaged", fault, allowed, "save it again, as such, or take another file")
    return tensors


def _refusal(value: Path | str, kind: Kind, reason: str, allowed: str = "", remedy: str = "") -> UserError:
    return UserError(Fault("train.weights", str(value), kind, reason, allowed, remedy))


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """A block that reads or converts a user's file: any error that is not of the system becomes a UserError.

    torch names no types for its errors, and the unpickler raises almost any.
    """
    try:
        yield
    except Exception as error:
        if errors.describe_system_error(error):
            raise
        if isinstance(error, SafetensorError | RuntimeError | EOFError | ValueError):
            reason = " ".join(str(error).partition("\n")[0].split())[:200] or "it ends too early"
            raise _refusal(path, "damaged", f"cannot be read: {reason}", remedy="get the file again") from None
        reason = "it has Python objects that are not tensors, which could run code, or is damaged"
        remedy = "if you trust it, load it once and save its model.state_dict() with torch.save"
        raise _refusal(path, "damaged", reason, "only tensors", remedy) from None


def _tensors(path: Path, content: Any) -> dict[str, Tensor]:
    """The weights in the content of a file: a dict of tensors, directly or under a key of WRAPPED_IN."""
    for key in WRAPPED_IN:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not (isinstance(content, dict) and content and all(isinstance(value, Tensor) for value in content.values())):
        keys = ", ".join(map(str, list(content)[:MOST_NAMED])) or "nothing in it" if isinstance(content, dict) else ""
        allowed = f"a dict of tensors by name, directly or under {' or '.join(map(repr, WRAPPED_IN))}"
        raise _refusal(path, "damaged", f"it holds {f'a dict with {keys}' if keys else 'no dict'}", allowed)
    return content


def _new_name(name: str) -> str:
    """The present name of a tensor that torchvision renamed."""
    for pattern, replacement in OLD_NAMES:
        name = pattern.sub(replacement, name)
    return name


def _other_classes(state: Mapping[str, Tensor], loaded: Mapping[str, Tensor], head_names: list[str]) -> bool:
    """Whether the two heads differ in their number of classes, the first axis, and in nothing else."""
    return _same_but_for_classes(state, loaded, head_names) and any(
        len(loaded[name]) != len(state[name]) for name in head_names
    )


def _same_but_for_classes(state: Mapping[str, Tensor], loaded: Mapping[str, Tensor], head_names: list[str]) -> bool:
    """Whether the two heads differ in nothing but their classes, the first axis."""
    return all(
        name in loaded and loaded[name].ndim > 0 and loaded[name].shape[1:] == state[name].shape[1:]
        for name in head_names
    )


def _by_class(own: Tensor, loaded: Tensor, classes: Sequence[str], named: Sequence[str]) -> Tensor:
    """A tensor of the head: of each class that the file names, the part in the file; else the model's own part."""
    result = own.clone()
    for index, label in enumerate(classes):
        if label in named:
            result[index] = loaded[named.index(label)]
    return result


def _faults(state: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> list[str]:
    """Why `loaded` does not fit the model's `state`, one sentence per tensor.

    Files from before torch 0.4.1 do not count batches, which is allowed.
    """
    missing = sorted(name for name in state.keys() - loaded.keys() if not name.endswith("num_batches_tracked"))
    return [
        *(f"{name} is missing" for name in missing),
        *(f"{name} is not of this model" for name in sorted(loaded.keys() - state.keys())),
        *(
            f"{name} has shape {list(loaded[name].shape)}, not {list(state[name].shape)}"
            for name in state
            if name in loaded and loaded[name].shape != state[name].shape
        ),
    ]
