"""The side of the training crops, which may rise with the epochs, and of the evaluation's.

All functions are pure functions of the params. Small images cost less time, and the last epochs have images of the full
side [progressive resizing, Howard 2018].
"""

from collections.abc import Iterator

from pipeline.base.errors import Fault
from pipeline.config.params import WHOLE, Params, Train

SMALLEST = 16  # pixels, as of train.crop
STEP = 32  # pixels from one side to the next; the last one may be smaller


def sides(train: Train) -> list[int]:
    """The sides in pixels, ascending. The last is `train.crop`, and without `train.crop_from` the only one."""
    return [*range(train.crop_from or train.crop, train.crop, STEP), train.crop]


def side_of_epoch(train: Train, epoch: int) -> int:
    """The side in an epoch (from 0). Each side has an equal share of the epochs, and the last epoch `train.crop`."""
    ascending = sides(train)
    return ascending[((epoch + 1) * len(ascending) - 1) // train.epochs]


def sides_of_training(train: Train) -> list[int]:
    """The sides of all epochs, ascending: with fewer epochs than sides, some have no epoch."""
    return list(dict.fromkeys(side_of_epoch(train, epoch) for epoch in range(train.epochs)))


def key_of(train: Train, side: int) -> str:
    """The key of `train` that a side comes from."""
    return "crop" if side == train.crop else "crop_from"


def faults(params: Params) -> Iterator[Fault]:
    """A fault for each pair of sides that contradict each other. With WHOLE, eval_resize is not used."""
    train = params.train
    if train.crop_from and not SMALLEST <= train.crop_from < train.crop:
        allowed = f"0, or from {SMALLEST} to below train.crop ({train.crop})"
        yield Fault("train.crop_from", str(train.crop_from), "pair", allowed=allowed)
    if params.prepare.fit not in WHOLE and train.eval_crop > train.eval_resize:
        allowed = f"up to train.eval_resize ({train.eval_resize})"
        yield Fault("train.eval_crop", str(train.eval_crop), "pair", allowed=allowed)
