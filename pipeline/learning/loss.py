"""The losses of training, with label smoothing, and with a weight per class."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from pipeline.base.errors import Fault, UserError


def balanced_weights(counts: Mapping[str, int]) -> list[float]:
    """The weight of every class, from its training images: n / (classes · n_c) [scikit-learn, class_weight="balanced"].

    So every class has the same sum of weights, and the mean weight of an image is 1. Raises UserError for a class
    without a training image.
    """
    if empty := [name for name, count in counts.items() if not count]:
        reason = f"the class {empty[0]!r} has no training image"
        raise UserError(Fault("train.class_weights", "balanced", "pair", reason, "none, or an image"))
    return [sum(counts.values()) / (len(counts) * count) for count in counts.values()]


def cross_entropies(logits: Tensor) -> Tensor:
    """The cross entropy [n, classes] of each image, for each class that could be its own. Logits [n, classes]."""
    return -logits.log_softmax(1)


def focal_losses(logits: Tensor) -> Tensor:
    """The focal loss [n, classes], in the same form: (1 - p)² · -log p [Lin et al. 2017, with gamma 2, their best].

    An image that is already recognized, p near 1, counts little; so the others decide what is learned.
    """
    log_probs = logits.log_softmax(1)
    return (1 - log_probs.exp()).square() * -log_probs


def criterion(losses: Callable[[Tensor], Tensor], weights: Sequence[float], label_smoothing: float) -> nn.Module:
    """The loss of training, from the arguments of `WeightedLoss`.

    Cross entropy where no class weighs more than another is torch's own, which is faster.
    """
    if losses is cross_entropies and set(weights) == {1.0}:
        return nn.CrossEntropyLoss(label_smoothing=label_smoothing)
    return WeightedLoss(losses, weights, label_smoothing)


class WeightedLoss(nn.Module):
    """The mean over the images of a batch of: the weight of the image's class × the loss of the image.

    `losses` gives the loss of each image for each class that could be its own: logits float32 [n, classes] → [n,
    classes].

    The divisor is the number of images. torch's CrossEntropyLoss(weight=…) divides by the sum of the weights in the
    batch instead, or by the number of images if targets are probabilities. So with torch the loss of an image depends
    on its neighbours in the microbatch, and on the number of microbatches and processes. Here it depends on neither,
    because all microbatches have the same size.

    Label smoothing comes after the weight: it spreads an image's own weight over all classes. torch gives each class
    its part of the smoothing with that class's weight; a rare class is then a better answer than the true one.
    """

    weights: Tensor

    def __init__(self, losses: Callable[[Tensor], Tensor], weights: Sequence[float], label_smoothing: float) -> None:
        super().__init__()
        self._losses = losses
        self.register_buffer("weights", torch.tensor(weights))
        self._smoothing = label_smoothing

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss [] of logits [n, classes] and targets: labels int64 [n], or probabilities [n, classes].

        The loss of mixed targets is the mixture of the losses.
        """
        if targets.ndim == 1:
            targets = (targets[:, None] == torch.arange(len(self.weights), device=targets.device)).float()
        weighted_targets = targets * self.weights
        losses = self._losses(logits.float())
        hit = (weighted_targets * losses).sum(1)
        spread = weighted_targets.sum(1) * losses.mean(1)
        return ((1 - self._smoothing) * hit + self._smoothing * spread).mean()
