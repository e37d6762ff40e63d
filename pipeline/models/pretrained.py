"""Pretrained weights: convert a user's file (.pth, .pt, .safetensors) to safetensors, and load that into a model.

The stage weights converts, so an unusable file is refused before hours of work. The stage train only loads.
"""

import errno
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypeGuard

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from pipeline.base import errors, files, schema
from pipeline.base.errors import Fault, Kind, UserError, one_line
from pipeline.base.text import in_words
from pipeline.config.model_names import PACKAGED
from pipeline.models import exact, network

FORMATS = (".pth", ".pt", ".safetensors")
WEIGHTS_KEYS = ("state_dict", "model_state_dict", "model")  # keys under which training scripts save the weights
CLASSES = "classes"  # the key of a .safetensors file's metadata with the names of the head's classes, as JSON
IMAGENET_CLASSES = 1000
MAX_NAMES = 3  # tensors of one kind in an error message

# torchvision published some weights before it renamed parts of their models: the dense layers of DenseNet, and the MLPs
# of vision transformers. Its loaders translate these names too.
OLD_NAMES = (
    (re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)"), r"\1\2"),
    (re.compile(r"(encoder_layer_\d+\.mlp\.)linear_1\."), r"\g<1>0."),
    (re.compile(r"(encoder_layer_\d+\.mlp\.)linear_2\."), r"\g<1>3."),
)
AUXILIARY_HEAD = re.compile(r"(aux1|aux2|AuxLogits)\.")  # in GoogLeNet and Inception; the models here have none


def published_weights(model: str) -> tuple[str, str]:
    """The address of torchvision's default weights of a model, and the first digits of their SHA-256."""
    url: str = network.published(model).url
    (digits,) = re.findall(r"-([0-9a-f]{8,64})\.pth$", url)  # as in resnet18-f37072fd.pth
    return url, digits


def packaged_weights(model: str) -> tuple[Path, list[str]]:
    """The file of a model of PACKAGED, and the model's names of its tensors, in their order.

    The packages have the tensors of timm's models in timm's order, under other names. Raises UserError if the package
    is missing, or its file has another SHA-256.
    """
    entry, remedy = PACKAGED[model], "make setup installs the packages of requirements/lock.txt"
    try:
        path = Path(str(metadata.distribution(entry.package).locate_file(entry.file)))
        digest = files.sha256(path)
    except (metadata.PackageNotFoundError, FileNotFoundError):
        raise errors.missing(entry.package, remedy, f"it has the weights of {model}, and is not installed") from None
    if digest != entry.sha256:
        raise UserError(Fault(str(path), f"SHA-256 {digest}", "differs", "", entry.sha256, remedy))
    with torch.device("meta"):
        return path, [*network.build(model, IMAGENET_CLASSES, seed=0).state_dict()]


def convert(source: Path, target: Path, model: str, names: Sequence[str] = ()) -> list[str]:
    """Write the weights of `source` for a model to `target` as safetensors, with torchvision's present names.

    `names`: other names for all tensors, in their order. Of metadata only the names of the classes stay. Returns one
    sentence per change. Raises UserError if `source` is missing, or has not the weights of the model. The head may be
    missing, or have other classes.
    """
    tensors, notes, classes = _read(source), list[str](), tuple[str, ...]()
    if names:
        tensors = dict(zip(names, tensors.values(), strict=True))
    if source.suffix == ".safetensors":
        with schema.reading(source, f"write {CLASSES!r} as a JSON list of names, or leave it out"):
            classes = classes_of(source)
    with torch.device("meta"):
        net = network.build(model, IMAGENET_CLASSES, seed=0)
    state, head_names = net.state_dict(), _head_names(net)
    tensors = {present_name(name): tensors[name] for name in sorted(tensors)}
    if prefix := _prefix(tensors, [name for name in state if _is_needed(name) and name not in head_names]):
        others = [name for name in tensors if not name.startswith(prefix)]
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items() if name not in others}
        notes.append(f"{source.name}: the prefix {prefix!r} removed from the names")
        if others:
            notes.append(f"{source.name}: {len(others)} tensors without this prefix left out (first: {others[0]!r})")
    if auxiliary := [name for name in tensors if AUXILIARY_HEAD.match(name)]:
        tensors = {name: value for name, value in tensors.items() if name not in auxiliary}
        notes.append(f"{source.name}: {len(auxiliary)} tensors of auxiliary heads left out; the models here have none")
    _check_fit(source, state, tensors, head_names)
    with _reading_user_file(source):
        content = _content(tensors, classes)
    with files.atomic_file(target) as temporary:
        temporary.write_bytes(content)
    return notes


def quantize(path: Path, model: str) -> None:
    """Write a file of `convert` again, as the whole numbers of `model` (exact.py), without a head.

    Raises UserError if the sums of these weights could be inexact.
    """
    save(path, exact.quantize(model, safetensors.torch.load_file(path)), ())


def save(path: Path, tensors: Mapping[str, Tensor], classes: Sequence[str]) -> None:
    """Write weights as safetensors. `classes`: the names of the head's classes in their order; empty if not known."""
    path.write_bytes(_content(tensors, classes))  # on a full disk, save_file does not raise OSError


def _content(tensors: Mapping[str, Tensor], classes: Sequence[str]) -> bytes:
    """The bytes of a .safetensors file."""
    metadata = {CLASSES: json.dumps(list(classes))} if classes else None  # with one key, its order is stable
    separate = {name: value.clone().contiguous() for name, value in tensors.items()}
    return bytes(safetensors.torch.save(separate, metadata))


def classes_of(path: Path) -> tuple[str, ...]:
    """The names of the head's classes in a .safetensors file; empty if the file does not name them."""
    with safetensors.safe_open(path, "pt") as content:
        names = json.loads((content.metadata() or {}).get(CLASSES, "[]"))
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"{CLASSES!r} in its metadata is not a list of names")
    return tuple(names)


def load_into(net: nn.Module, path: Path, classes: Sequence[str] = ()) -> str:
    """Load a file of `convert` into a model. Returns one sentence about the loaded tensors.

    If the file names the classes of its head, each of the model's `classes` gets the part of the head with its name. If
    it does not, and the file has no head or one with another number of classes, the model's head is not changed. Raises
    UserError, with the first names, if any other tensor is missing, unknown to the model, or of another shape.
    """
    with schema.reading(path, schema.checkout(path.parent), SafetensorError), path.open("rb"):
        state, tensors, file_classes = net.state_dict(), safetensors.torch.load_file(path), classes_of(path)
    if fault := network.weights_fault(tensors):
        raise errors.damaged(path, fault, schema.checkout(path.parent))
    name, head_names = network.head_name(net), _head_names(net)
    note = f"{path}: {len(tensors)} tensors loaded"
    if file_classes and any(tensors[part].shape[:1] != (len(file_classes),) for part in head_names if part in tensors):
        reason = f"its metadata names {len(file_classes)} classes, its head {name!r} has another number"
        raise _refusal(path, "damaged", reason, remedy="write the names of all its classes, or none")
    _check_fit(path, state, tensors, head_names)
    if tensors.keys().isdisjoint(head_names):
        note += f", without the head {name!r}: it is new"
        tensors |= {part: state[part] for part in head_names}
    elif file_classes and file_classes != tuple(classes):
        common_classes = [label for label in classes if label in file_classes]
        tensors |= {part: _by_class(state[part], tensors[part], classes, file_classes) for part in head_names}
        new = ", ".join(repr(label) for label in classes if label not in file_classes)
        note += f"; of the head {name!r}, the parts of {len(common_classes)} classes"
        if new:
            note += f"; untrained: {new}"
    elif any(len(tensors[part]) != len(state[part]) for part in head_names):
        file_count, model_count = len(tensors[head_names[0]]), len(state[head_names[0]])
        note += f", except the head {name!r} ({file_count} classes there, {model_count} here): it is new"
        tensors |= {part: state[part] for part in head_names}
    state.update(tensors)  # keeps num_batches_tracked, which old files lack, and the versions that MNASNet needs
    net.load_state_dict(state)
    return note


def _read(path: Path) -> dict[str, Tensor]:
    """Name → tensor of a file. No code in the file is run."""
    if path.suffix not in FORMATS:
        raise _refusal(path, "value", "no known format", f"none, imagenet, {', '.join(FORMATS)}")
    if not path.is_file():
        raise _refusal(path, "missing", "there is no such file", "none, imagenet, a file's path")
    with _reading_user_file(path):
        if path.suffix == ".safetensors":
            content = safetensors.torch.load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    tensors = _tensors(path, content)
    with _reading_user_file(path):
        fault = network.weights_fault(tensors)
    if fault:
        allowed = "tensors of real, finite numbers by name"
        raise _refusal(path, "damaged", fault, allowed, "save it again, as such, or take another file")
    return tensors


def _refusal(path: Path, kind: Kind, reason: str, allowed: str = "", remedy: str = "") -> UserError:
    return UserError(Fault("train.weights", str(path), kind, reason, allowed, remedy))


@contextmanager
def _reading_user_file(path: Path) -> Iterator[None]:
    """A block that reads or converts a user's file. Raises UserError for any error but those of the system.

    torch documents no types for its errors, and the unpickler raises almost any.
    """
    try:
        yield
    except Exception as error:
        # torch seeks beyond the end of a file that is cut
        if errors.describe_system_error(error) and getattr(error, "errno", 0) != errno.EINVAL:
            raise
        reason = f"it is damaged, or has Python objects that are not tensors, which could run code: {one_line(error)}"
        remedy = "get it again; if you trust it, load it once and save its model.state_dict() with torch.save"
        raise _refusal(path, "damaged", reason, "only tensors", remedy) from None


def _tensors(path: Path, content: Any) -> dict[str, Tensor]:
    """The weights in the content of a file: a dict of tensors, directly or under a key, such as one of WEIGHTS_KEYS."""
    for key in WEIGHTS_KEYS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if isinstance(content, dict):
        named = [value for value in content.values() if _is_named_tensors(value)]
        content = named[0] if len(named) == 1 else content
    if not _is_named_tensors(content):
        keys = ", ".join(map(str, list(content)[:MAX_NAMES])) or "nothing in it" if isinstance(content, dict) else ""
        allowed = "a dict of tensors by name, directly or under one key"
        raise _refusal(path, "damaged", f"it holds {f'a dict with {keys}' if keys else 'no dict'}", allowed)
    return content


def _is_named_tensors(content: Any) -> TypeGuard[dict[str, Tensor]]:
    return isinstance(content, dict) and content != {} and all(isinstance(value, Tensor) for value in content.values())


def present_name(name: str) -> str:
    """The present name of a tensor that torchvision renamed."""
    for pattern, replacement in OLD_NAMES:
        name = pattern.sub(replacement, name)
    return name


def _head_names(net: nn.Module) -> list[str]:
    """The names of the head's tensors that have a row for each class: in timm, a head may have more layers."""
    name, tensors = network.head_name(net), network.head(net).state_dict()
    classes = [len(value) for value in tensors.values() if value.ndim > 1][-1]
    return [f"{name}.{part}" for part, value in tensors.items() if value.shape[:1] == (classes,)]


def _prefix(names: Collection[str], needed: Sequence[str]) -> str:
    """What stands before the names of a model in `names`: a wrapper's `module.`, an attribute's `backbone.`.

    Empty if nothing does, or if the names of two models are there, so that nobody can say which one is meant.
    """
    prefixes = {name.removesuffix(needed[0]) for name in names if name.endswith(needed[0])}
    whole = [prefix for prefix in prefixes if all(prefix + name in names for name in needed)]
    return whole[0] if len(whole) == 1 else ""


def _by_class(model_tensor: Tensor, file_tensor: Tensor, classes: Sequence[str], file_classes: Sequence[str]) -> Tensor:
    """A tensor of the head: of each class that the file names, the part in the file; else the model's own part."""
    result = model_tensor.clone()
    for index, label in enumerate(classes):
        if label in file_classes:
            result[index] = file_tensor[file_classes.index(label)]
    return result


def _is_needed(name: str) -> bool:
    """Whether a file must have this tensor: those from before torch 0.4.1 do not count batches."""
    return not name.endswith("num_batches_tracked")


def _check_fit(path: Path, state: Mapping[str, Tensor], tensors: Mapping[str, Tensor], head_names: list[str]) -> None:
    """Raise UserError, with the first names of each kind of fault, if the tensors do not fit the model's `state`.

    The head may be missing as a whole, or differ in nothing but its classes, the first axis.
    """
    headless = tensors.keys().isdisjoint(head_names)
    needed = {name for name in state if _is_needed(name) and not (headless and name in head_names)}
    missing, unknown = sorted(needed - tensors.keys()), sorted(tensors.keys() - state.keys())
    shapes = []
    for name in sorted(tensors.keys() & state.keys()):
        file_shape, shape = [*tensors[name].shape], [*state[name].shape]
        if len(file_shape) != len(shape) or file_shape[name in head_names :] != shape[name in head_names :]:
            shapes.append(f"{name} has shape {file_shape}, not {shape}")
    kinds = ((missing, " missing"), (unknown, " not of this model"), (shapes, ""))
    faults = [in_words(names, MAX_NAMES) + what for names, what in kinds if names]
    if faults:
        reason = f"it does not fit the model: {'; '.join(faults)}"
        raise _refusal(path, "pair", reason, "weights of train.model (only the head may differ), or none")
