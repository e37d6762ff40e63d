"""The learning rate as a pure function of the step: a warm-up, then a constant, a half cosine, or drops."""

import math
from bisect import bisect_right
from collections.abc import Sequence


def lr_factor(
    kind: str, step: int, steps: int, warmup_steps: int, final: float, drops: Sequence[int] = (), drop: float = 1.0
) -> float:
    """The share of the base learning rate used in `step` (from 0) of `steps`.

    Linear from 1/warmup_steps to 1 over the warm-up [Goyal et al. 2017], then `constant`, or `cosine`: half a cosine
    from 1, right after the warm-up, towards `final`, which the step after the last would have [Loshchilov 2017]; or
    `step`: times `drop` from each step in `drops` (rising, counted from the start of the training) on.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return {
        "constant": 1.0,
        "cosine": final + (1 - final) * (0.5 * (1 + math.cos(math.pi * progress))),
        "step": drop ** bisect_right(drops, step),
    }[kind]


def scaled(lr: float, batch: int, reference: int) -> float:
    """A learning rate meant for batches of `reference`, for batches of `batch`: linear [Goyal et al. 2017].

    With `reference` 0 it is meant for any batch, and stays.
    """
    return lr * batch / reference if reference else lr
