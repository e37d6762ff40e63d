"""The models of timm, a library of its own: train.model: timm/<name>. It is imported only for such a model.

They are trained as torchvision's. `faults` refuses a model that cannot be trained, before any work: it builds the model
without memory (torch's device "meta") and computes the logits of two images of each size.
"""

import difflib
from typing import Any, cast

import torch
from torch import nn

from pipeline.base.errors import Fault, one_line
from pipeline.base.text import did_you_mean
from pipeline.config import resolution
from pipeline.config.model_names import TIMM
from pipeline.config.params import Train
from pipeline.dataset.normalization import IMAGENET, Normalization


def library() -> Any:
    """timm. For a function of one model, torch.compiler.disable would import torch's compiler: a second [measured].

    torch's own decorator of the same meaning imports the compiler only when such a function is called.
    """
    compiler: Any = torch.compiler
    usual, compiler.disable = compiler.disable, cast(Any, torch)._disable_dynamo
    try:
        import timm
    finally:
        compiler.disable = usual
    return timm


def is_known(model: str) -> bool:
    """Whether timm has an architecture of this name (with `timm/`). For other names timm would fetch files."""
    return model.removeprefix(TIMM) in library().list_models()


def build(model: str, classes: int) -> Any:
    """The model (nn.Module), with random weights from torch's generator, ending in `classes` logits. No network."""
    return library().create_model(model.removeprefix(TIMM), pretrained=False, num_classes=classes)


def head(net: Any) -> Any:
    """The layer that timm names as the classifier; None if the model is none of timm's, or timm names none."""
    return net.get_classifier() if hasattr(net, "get_classifier") else None


def faults(settings: Train) -> list[Fault]:
    """Why train.model, if it is one of timm's, cannot be trained with these sides; empty if it can."""
    model = settings.model
    if not model.startswith(TIMM):
        return []
    if not is_known(model):
        timm = library()
        near = difflib.get_close_matches(model.removeprefix(TIMM), timm.list_models(), n=3)
        guess = did_you_mean([TIMM + name for name in near]) or "timm.list_models() names them"
        reason = f"the installed timm {timm.__version__} has no such model"
        return [Fault("train.model", model, "unknown", reason, remedy=guess)]
    with torch.device("meta"):
        net, other = build(model, 2).eval(), build(model, 3)
    if not _names_its_head(net, other):
        reason = "timm does not name one layer that gives the classes, so the head is not known"
        return [Fault("train.model", model, "value", reason, "another model")]
    parts = [part for part in head(net).modules() if any(True for _ in part.parameters(recurse=False))]
    if settings.temperature == "fitted" and not (len(parts) == 1 and isinstance(parts[0], nn.Linear | nn.Conv2d)):
        reason = f"the head of train.model: {model!r} is not one linear layer, whose weights can take a factor"
        return [Fault("train.temperature", "fitted", "pair", reason, "none, or another model")]
    crop_sides = [(resolution.key_of(settings, side), side) for side in resolution.sides_of_training(settings)]
    for key, side in (*crop_sides, ("eval_crop", settings.eval_crop)):
        if reason := _side_fault(net, side):
            own_side = net.pretrained_cfg["input_size"][-1]
            reason = f"train.model: {model!r} does not take images of this size ({reason}); its own is {own_side}"
            allowed = f"{0 if key == 'crop_from' else own_side}, or another model"
            return [Fault(f"train.{key}", str(side), "pair", reason, allowed)]
    return []


def normalization(model: str) -> Normalization:
    """How timm's published weights of this model expect pixels; without such weights, IMAGENET."""
    published: Any = library().get_pretrained_cfg(model.removeprefix(TIMM))
    return Normalization(tuple(published.mean), tuple(published.std)) if published else IMAGENET


def _names_its_head(net: nn.Module, other: nn.Module) -> bool:
    """Whether timm names a layer that has every parameter whose shape depends on the number of classes.

    `other`: the same model with another number of classes.
    """
    classifier, others = head(net), dict(other.named_parameters())
    head_ids = {id(value) for value in classifier.parameters()} if isinstance(classifier, nn.Module) else set()
    of_classes = [value for name, value in net.named_parameters() if value.shape != others[name].shape]
    return bool(of_classes) and all(id(value) in head_ids for value in of_classes)


def _side_fault(net: nn.Module, side: int) -> str:
    """Why the model, on the device "meta", does not give two logits for each of two images of this side; or empty."""
    try:
        with torch.no_grad():
            output = net(torch.empty(2, 3, side, side, device="meta"))
    except (RuntimeError, AssertionError, ValueError) as error:
        return one_line(error)
    return "" if isinstance(output, torch.Tensor) and output.shape == (2, 2) else "it gives no logits"
