"""The learning rate as a pure function of the step: a warm-up, then a constant or a half cosine."""

import math


def factor(kind: str, step: int, steps: int, warmup_steps: int, final: float) -> float:
    """The share of the base learning rate used in `step` (from 0) of `steps`.

    Linear from 1/warmup_steps to 1 over the warm-up [Goyal et al. 2017], then `constant`, or `cosine`: half a cosine
    from 1, right after the warm-up, towards `final`, which the step after the last would have [Loshchilov 2017].
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    shape = {"constant": 1.0, "cosine": 0.5 * (1 + math.cos(math.pi * progress))}[kind]
    return shape if kind == "constant" else final + (1 - final) * shape
