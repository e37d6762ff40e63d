"""The environment variables with which a stage computes. They are set before its libraries are imported."""

import os
from pathlib import Path

from pipeline.base.errors import Fault, UserError
from pipeline.checks import machine
from pipeline.config.params import Arithmetic, Train
from pipeline.learning import environment
from pipeline.models import description


def set_variables(settings: Train, arithmetic: Arithmetic) -> None:
    """Set the environment variables that change results; the processes inherit them. Raises UserError."""
    deterministic = settings.deterministic or arithmetic == "portable"
    os.environ.update(environment.required_variables(settings.threads, deterministic, arithmetic))


def usable_arithmetic(models: Path) -> Arithmetic:
    """The arithmetic of the exported model. Raises UserError if there is no model, or if this CPU does not have it."""
    arithmetic = description.load(models).arithmetic
    if arithmetic == "portable" and (missing_features := machine.missing_cpu_features()):
        value = "train.arithmetic: portable"
        reason = f"it needs an x86-64 CPU with AVX2 and FMA; this one lacks {' and '.join(missing_features)}"
        remedy = "take another CPU, or train again with train.arithmetic: native"
        raise UserError(Fault(f"{models}/model.json", value, "machine", reason, remedy=remedy))
    return arithmetic
