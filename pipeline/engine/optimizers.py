"""A table from an optimizer's name to the optimizer; the learning rate of every step comes from the schedule."""

from collections.abc import Callable
from typing import Any

from torch.optim import SGD, Adam, AdamW, Optimizer

Groups = list[dict[str, Any]]


def _fused_sgd(groups: Groups, lr: float, momentum: float, nesterov: bool, betas: tuple[float, float]) -> Optimizer:
    from pipeline.engine import apex

    return apex.fused_sgd(groups, lr, momentum, nesterov)


# name → (parameter groups, lr, momentum, nesterov, betas) → optimizer
OPTIMIZERS: dict[str, Callable[[Groups, float, float, bool, tuple[float, float]], Optimizer]] = {
    "sgd": lambda groups, lr, momentum, nesterov, betas: SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov),
    "adam": lambda groups, lr, momentum, nesterov, betas: Adam(groups, lr=lr, betas=betas),
    "adamw": lambda groups, lr, momentum, nesterov, betas: AdamW(groups, lr=lr, betas=betas),
    "fused_sgd": _fused_sgd,
}
