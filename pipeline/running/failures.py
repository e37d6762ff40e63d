"""Errors of a running training, as faults of the params that cause them."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pipeline.base.errors import Fault, UserError
from pipeline.config import resolution
from pipeline.config.params import Train
from pipeline.learning import determinism


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
        reason = (
            f"a microbatch is one image, and the last layers of {settings.model!r} see one value per channel at "
            f"train.{key}: {side}. BatchNorm needs two"
        )
        remedy = f"raise it or train.{key}, or lower run.processes or train.accumulation_steps"
        fault = Fault("train.batch_size", str(settings.batch_size), "pair", reason, remedy=remedy)
        raise UserError(fault) from None
    except RuntimeError as error:
        if operator := determinism.nondeterministic_operator(error):
            reason = (
                f"{operator}, which train.model: {settings.model!r} needs, has no deterministic version on "
                f"train.device: {settings.device!r}"
            )
            allowed = "false (the bytes are then not promised), or another model"
            raise UserError(Fault("train.deterministic", "true", "pair", reason, allowed)) from None
        raise


def check_losses_finite(broken_step: int, settings: Train) -> None:
    """Raise UserError for the first step with a loss that is not finite, over all processes. -1: there is none.

    All processes call this with the same step, and all raise: otherwise the others would wait for one that has ended.
    """
    if broken_step >= 0:
        raise loss_error(f"the loss of step {broken_step}", settings)


def loss_error(loss: str, settings: Train) -> UserError:
    """The error for a loss that is not finite. `loss` names it, with its step or epoch."""
    reason, remedy = f"{loss} is not finite", f"lower it, or lengthen train.warmup_epochs ({settings.warmup_epochs})"
    return UserError(Fault("train.lr", str(settings.lr), "value", f"{reason}; nothing is exported", remedy=remedy))


def check_exported(row: Mapping[str, Any], settings: Train) -> None:
    """Raise UserError if the validation loss of the exported epoch, a row of the history, is not finite."""
    if not math.isfinite(row["val_loss"]):
        raise loss_error(f"the validation loss of epoch {row['epoch']}", settings)
