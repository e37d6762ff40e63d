"""Errors of a running training, said with the params that cause them."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.base.errors import UserError
from pipeline.config import resolution
from pipeline.config.params import Train
from pipeline.engine import determinism, distributed
from pipeline.engine.loop import Totals


@contextmanager
def explain_torch_errors(settings: Train) -> Iterator[None]:
    """Inside the block two errors of torch become a UserError that names the params.

    These are an operator without a deterministic version, and BatchNorm over a single value per channel.
    """
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        side = resolution.side_of_epoch(settings, 0)
        key = resolution.key_of(settings, side)
        raise UserError(
            f"train.batch_size: {settings.batch_size}: a microbatch is one image, and the last layers of "
            f"{settings.model!r} see one value per channel at train.{key}: {side}. BatchNorm needs two; "
            f"raise train.batch_size or train.{key}, or lower run.processes or train.accumulation_steps"
        ) from None
    except RuntimeError as error:
        if operator := determinism.nondeterministic_operator(error):
            raise UserError(
                f"train.deterministic: true × train.model: {settings.model!r}: {operator} has no deterministic version "
                f"on train.device: {settings.device!r}; allowed: false (the bytes are then not promised), another model"
            ) from None
        raise


def check_losses_finite(totals: Totals, settings: Train) -> None:
    """Raise UserError if a loss was not finite. Reads one number back from the device.

    All processes call this and all raise: if one left alone, the others would wait for it in an exchange.
    """
    if (step := int(distributed.all_reduce_max(totals.broken_step.clone()))) >= 0:
        raise UserError(
            f"the loss of step {step} is not finite; nothing is exported; lower train.lr ({settings.lr}) "
            f"or lengthen train.warmup_epochs ({settings.warmup_epochs})"
        )
