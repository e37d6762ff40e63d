"""A network of the user's own: `train.model: mine/<file>.py:<function>`, of a file in data/mine/.

The stage weights keeps a copy of the file in data/weights, from which later stages build the network. A model names its
code: mine/<file>.py:<function>@<digits of its SHA-256>. Only code in the project runs: a folder with a model has none.
"""

import difflib
import sys
import traceback
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from pipeline.base import errors, files
from pipeline.base.errors import Fault, UserError
from pipeline.base.text import did_you_mean, in_words
from pipeline.config import resolution
from pipeline.config.model_names import MINE, OWN
from pipeline.config.params import Params, Paths, Train

PROJECT = Path(__file__).parents[2]  # the folder whose code runs: the working folder of a notebook may be another
FORM = "mine/<file>.py:<function>, a function in data/mine/ that returns an nn.Module, as docs/projects.md has it"


def pinned(config: Params) -> Params:
    """The params with the code of data/weights in train.model. Raises UserError if the code is missing there."""
    name = config.train.model
    if parts := OWN.fullmatch(name):
        path = Path(Paths.weights, f"mine-{parts[1]}")
        if not path.is_file():
            raise errors.missing(path, "perennial repro weights")
        name += f"@{files.sha256(path)[:16]}"
    return config.model_copy(update={"train": config.train.model_copy(update={"model": name})})


def build(model: str, classes: int, seed: int) -> nn.Module:
    """The network on the CPU, with weights drawn from `seed`. Raises UserError if its code makes none."""
    torch.manual_seed(seed)
    path, function = _path(model), model.partition(":")[2].partition("@")[0]
    module = sys.modules["perennial_mine"] = ModuleType("perennial_mine")  # torch.compile finds it by its name
    try:
        with torch.device("cpu"):
            exec(compile(path.read_bytes(), path, "exec"), vars(module))  # noqa: S102 - the user has written it
            net = vars(module)[function](classes) if function in vars(module) else None
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        place = f"{path}, line {[getattr(error, 'lineno', '?'), *lines][-1]}"
        raise _refusal(model, "value", f"{place}: {type(error).__name__}: {error!s:.200}") from None
    if function not in vars(module):
        near = did_you_mean(difflib.get_close_matches(function, vars(module)))
        raise _refusal(model, "unknown", f"{path} has no such function", near)
    if not isinstance(net, nn.Module) or any(map(is_lazy, [*net.parameters(), *net.buffers()])):
        what = "lazy layers: give each the number of its inputs" if isinstance(net, nn.Module) else type(net).__name__
        raise _refusal(model, "value", f"the function returns {what}")
    return net


def faults(settings: Train) -> list[Fault]:
    """Why train.model, if it is the user's own, cannot be trained with these settings; empty if it can."""
    model = settings.model
    try:
        reason = model.startswith(MINE) and _reason(settings, build(model, 3, seed=0), build(model, 3, seed=0))
    except UserError as error:
        return [*error.faults]
    return [*_refusal(model, "value", reason).faults] if reason else []


def _reason(settings: Train, net: nn.Module, again: nn.Module) -> str:
    """What is wrong with a network, or empty. `again`: another one from the same seed."""
    state, others = net.state_dict(), again.state_dict()
    layout = torch.channels_last if settings.memory_format == "channels_last" else torch.contiguous_format
    if state.keys() != others.keys() or not all(
        isinstance(value, Tensor) and torch.equal(value, others[name]) for name, value in state.items()
    ):
        return "one seed gives different weights; take random numbers from torch alone"
    norms = {type(part).__module__ for part in net.modules() if isinstance(part, _BatchNorm)}
    if settings.sync_bn != "none" and norms - {_BatchNorm.__module__}:
        return "train.sync_bn would replace its BatchNorm, which is of another class than torch's"
    crops = [(resolution.key_of(settings, side), side) for side in resolution.sides_of_training(settings)]
    for key, side in (*crops, ("eval_crop", settings.eval_crop)):
        try:
            net.train(key != "eval_crop").to(memory_format=layout)  # type: ignore[call-overload]
            output = net(torch.linspace(-2, 2, 6 * side**2).reshape(2, 3, side, side).to(memory_format=layout))
            shape = [*output.shape] if isinstance(output, Tensor) else type(output).__name__
            if shape != [2, 3]:
                return f"train.{key}: {side}: for 2 images and 3 classes it gives {shape}"
            output.sum().backward()
        except Exception as error:  # the user's code may raise any
            return f"train.{key}: {side}: {type(error).__name__}: {errors.one_line(error)}"
    unused = [name for name, value in net.named_parameters() if value.requires_grad and value.grad is None]
    return f"no logit depends on {in_words(unused, 3)}; remove it, or set its requires_grad to False" if unused else ""


def _path(model: str) -> Path:
    """The file of a network: as the user has written it, or with the digits in the name. Raises UserError."""
    if not (parts := OWN.fullmatch(model)):
        raise _refusal(model, "value", "no such name; letters without accents, digits and '_' are")
    file, digits = parts[1], parts[3] or ""
    written, kept = Path(Paths.mine, file), Path(Paths.weights, f"mine-{file}")
    for path in [root / name for root in (Path(), PROJECT) for name in (kept, written)] if digits else [written]:
        if path.is_file() and files.sha256(path).startswith(digits):
            return path
    if digits:
        remedy = f"get {written} of this model back (git checkout), then perennial repro; or take model.onnx"
        raise _refusal(model, "differs", "no file of this project has this SHA-256", remedy)
    near = difflib.get_close_matches(file, [path.name for path in written.parent.glob("*.py")])
    raise _refusal(model, "missing", f"there is no {written}", did_you_mean(near))


def _refusal(model: str, kind: errors.Kind, reason: str, remedy: str = "") -> UserError:
    return UserError(Fault("train.model", model, kind, reason, FORM, remedy))
