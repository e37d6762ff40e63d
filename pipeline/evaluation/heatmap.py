"""Why this class: the places of an image that speak for it, and a picture of them.

In a network with global average pooling and a linear head, a logit is the mean over places of the head's weighted sum
of features: the class activation map [Zhou et al. 2016, "Learning deep features for discriminative localization"]. This
is exact, not an estimate, and it is compared with the logits of every image. A number added to all logits changes no
probability, so a map here is relative: what a place adds to the logit of the class, minus what it adds to the mean
logit of all classes.
"""

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.evaluation.photos import LoadedImage
from pipeline.loader import center
from pipeline.models import network
from pipeline.models.description import View

ALLOWED = "a network with global average pooling and a linear head, and an eval_crop that leaves it several places"
TINY = 1e-30  # what speaks for a class with less does not
TOLERANCE = 1e-3  # between a logit and the mean of its map, relative to the largest logit; float32 gives about 1e-6
# Twelve colours of cividis, at equal distances: dark blue to yellow, also for people who see no red or no green. It is
# off by at most 8 of 255 between them. [Nunez, Anderton, Renslow 2018, "Optimizing colormaps with consideration for
# color vision deficiency"; the values are those of matplotlib]
CIVIDIS = "00224e 013271 2f426d 49536c 5e636f 727374 878478 9d9576 b5a86f cebc63 e7d150 fee838"


class NoMaps(UserError):
    """A network whose logits are not the means of maps."""


class Features(TorchFunctionMode):
    """A block that keeps the results [1, channels, h, w] of torch's functions.

    A hook on modules would miss those of a function: DenseNet has no module for its last ReLU.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels, self.tensors = channels, list[Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.ndim == 4 and result.shape[:2] == (1, self.channels):
            self.tensors.append(result)
        return result


@torch.no_grad()
def explain(
    name: str, net: nn.Module, compute: Callable[[], NDArray[np.float64]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The logits [1, classes] that `compute` gets from the network for one image, and the map of each class.

    The maps [classes, h, w] are relative: the mean of a map over its places is the logit of the class minus the mean
    logit. Raises NoMaps if the network's logits are not such means, or if there is only one place. `name`: of the
    network, for the error.
    """
    head = network.head(net)
    if not isinstance(head, nn.Linear):
        raise NoMaps(Fault("train.model", name, "value", "its head is not linear", ALLOWED))
    with Features(head.in_features) as features:
        logits = compute()
    weight = head.weight.double()
    bias = weight.new_zeros(len(weight)) if head.bias is None else head.bias.double()
    for tensor in features.tensors:
        maps = torch.einsum("kc,chw->khw", weight, tensor[0].double()) + bias[:, None, None]
        difference = np.abs(maps.mean((1, 2)).to("cpu").numpy() - logits[0]).max()
        if maps[0].numel() > 1 and difference <= TOLERANCE * np.abs(logits).max():
            relative: NDArray[np.float64] = (maps - maps.mean(0)).to("cpu").numpy()
            return logits, relative
    raise NoMaps(Fault("train.model", name, "value", "its logits are no means over several places", ALLOWED))


def picture(image: LoadedImage, view: View, values: NDArray[np.float64]) -> Image.Image:
    """The part of an image that the model sees, in grey, with a map [h, w] over it.

    Dark blue: the place does not speak for the class, or speaks against it. Yellow: of all places it speaks most.
    """
    (box,) = center.eval_boxes(np.array([image.size], np.int32), view.packed_size, view.resize, view.crop)
    seen = np.rint(center.cut(image.pixels, box, view.crop)).astype(np.uint8).transpose(1, 2, 0)
    grey = np.asarray(Image.fromarray(seen).convert("L"), np.uint16)
    positive = np.maximum(values, 0)
    levels = np.rint(255 / max(positive.max(), TINY) * positive).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(levels).resize((view.crop, view.crop), Image.Resampling.BICUBIC))
    return Image.fromarray(((grey[:, :, None] + _colours()[smooth] + 1) // 2).astype(np.uint8))


def _colours() -> NDArray[np.uint16]:
    """The colours [256, 3] of the levels 0 to 255."""
    anchors = np.array([list(bytes.fromhex(colour)) for colour in CIVIDIS.split()])
    places = np.rint(np.linspace(0, 255, len(anchors)))
    return np.rint([np.interp(np.arange(256), places, channel) for channel in anchors.T]).T.astype(np.uint16)


def save(picture: Image.Image, folder: Path, stem: str) -> Path:
    """Write <stem>.png, or <stem>-2.png and so on if there is such a file. Returns the path.

    It is not compressed, because zlib compresses to other bytes on other kinds of CPU.
    """
    stem = os.fsdecode(os.fsencode(stem)[:200])  # a name has at most 255 bytes, and is longer while it is written
    names = (f"{stem}{f'-{number}' if number > 1 else ''}.png" for number in count(1))
    path = next(path for path in map(folder.joinpath, names) if not path.exists())
    with files.atomic_file(path) as temporary:
        picture.save(temporary, "PNG", compress_level=0)
    return path
