"""How the pixels of a model are normalized: the mean and the standard deviation that its published weights expect."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of red, green and blue, in units of a full pixel value."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and scale [3] that normalize a pixel of 0 to 255 on a device: (pixel - mean) · scale."""
        return constant(self.mean, device) * 255, 1 / (constant(self.std, device) * 255)


IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # of ImageNet's pixels [torchvision's reference]


@cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Values [c] on the device, copied once: a copy from memory that is not pinned waits for the device."""
    return torch.tensor(values, device=device)
