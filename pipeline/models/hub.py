"""The content of models/config.json, with which timm and transformers load the model; without torch.

timm loads its own models, and those of torchvision that have the same layers in both libraries (`TIMM_NAMES`).
transformers loads through timm, and only if the tensors have timm's names. For any other model config.json names the
library that has it. timm and transformers then refuse to load the model, with this name in their message.
"""

import math
from typing import Any

from pipeline.config.model_names import EXACT, MINE, TIMM
from pipeline.config.params import Fit
from pipeline.models.description import Description, View

FILE = "config.json"
# torchvision's model → timm's model with the same layers. A test compares the two, for every model of torchvision.
TIMM_NAMES = {
    **{name: name for name in (
        "densenet121", "densenet161", "densenet169", "densenet201", "inception_v3", "resnet18", "resnet34", "resnet50",
        "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d", "wide_resnet50_2",
        "wide_resnet101_2",
    )},
    "regnet_x_400mf": "regnetx_004_tv", "regnet_x_800mf": "regnetx_008", "regnet_x_1_6gf": "regnetx_016",
    "regnet_x_3_2gf": "regnetx_032", "regnet_x_8gf": "regnetx_080", "regnet_x_16gf": "regnetx_160",
    "regnet_x_32gf": "regnetx_320", "regnet_y_400mf": "regnety_004", "regnet_y_800mf": "regnety_008_tv",
    "regnet_y_1_6gf": "regnety_016", "regnet_y_3_2gf": "regnety_032", "regnet_y_8gf": "regnety_080_tv",
    "regnet_y_16gf": "regnety_160", "regnet_y_32gf": "regnety_320", "regnet_y_128gf": "regnety_1280",
}  # fmt: skip
RENAMED_PREFIX = "regnet_"  # timm renames the tensors of these when it loads them; transformers does not
CROP_MODES: dict[Fit, str] = {"none": "center", "squash": "squash", "crop": "center", "pad": "border"}  # timm's
HALF = (0.5, 0.5, 0.5)  # torchvision's Inception transforms our normalized images to [-1, 1]; timm's expects that


def timm_name(model: str) -> str:
    """timm's name of a model that timm can load; empty if it cannot."""
    return model.removeprefix(TIMM) if model.startswith(TIMM) else TIMM_NAMES.get(model, "")


def loads_in_transformers(model: str) -> bool:
    """Whether transformers can load the model."""
    return bool(timm_name(model)) and not model.startswith(RENAMED_PREFIX)


def config(description: Description) -> dict[str, Any]:
    """The content of config.json."""
    name, view = timm_name(description.model), description.view
    architecture, model_type = name or f"torchvision.models.{description.model}", "timm" if name else "torchvision"
    if loads_in_transformers(description.model):
        model_type = "timm_wrapper"
    if description.model.startswith((EXACT, MINE)):
        architecture, model_type = description.model, "perennial"
    normalizes_itself = description.model == "inception_v3"
    return {
        "architecture": architecture,
        "model_type": model_type,
        "num_classes": len(description.classes),
        "label_names": list(description.classes),
        "pretrained_cfg": {
            "input_size": [3, view.crop, view.crop],
            "crop_pct": crop_share(view),
            "crop_mode": CROP_MODES[view.fit],
            "interpolation": "bicubic",
            "mean": list(HALF if normalizes_itself else description.mean),
            "std": list(HALF if normalizes_itself else description.std),
        },
    }


def crop_share(view: View) -> float:
    """crop / resize, such that crop divided by it and rounded down, as timm does, is `resize`."""
    share = view.crop / view.resize
    while math.floor(view.crop / share) < view.resize:
        share = math.nextafter(share, 0)
    return share
