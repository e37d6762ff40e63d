"""Machines, the choices of each option, and params with some lines changed, for tests of what is refused."""

from functools import cache
from typing import Any, get_args

from pipeline.checks.machine import Machine
from pipeline.config import params
from pipeline.config.params import Params, Train
from pipeline.learning.choices import CLASS_WEIGHTS, LOSSES, OPTIMIZERS
from tests.conftest import change, on_cpu, read_params

CPU_ONLY = Machine(cuda_devices=0, apex="missing", compiler=True)
TWO_GPUS = Machine(cuda_devices=2, apex="usable", compiler=True)
PRECISION, PARALLEL = get_args(params.Precision), get_args(params.Parallel)
SYNC_BN = get_args(Train.model_fields["sync_bn"].annotation)
MEMORY_FORMAT = get_args(Train.model_fields["memory_format"].annotation)

# On two GPUs with Apex, two processes with DDP, a moving average at hand, a place for nodes to meet: then every one of
# these choices runs, alone.
CHOICES: dict[str, tuple[Any, ...]] = {
    "prepare.fit": get_args(params.Fit),
    "train.precision": PRECISION, "train.parallel": ("ddp", "single", "dp", "apex_ddp", "elastic"),
    "train.backend": get_args(params.Backend),
    "train.sync_bn": SYNC_BN, "train.memory_format": MEMORY_FORMAT, "train.compile": (False, True),
    "train.gradient_checkpointing": (False, True), "train.freeze_backbone": (False, True),
    "train.optimizer": tuple(OPTIMIZERS), "train.export": ("last", "best", "ema"), "train.ema_decay": (0.9, 0.0),
    "train.accumulation_steps": (1, 2), "train.schedule": get_args(Train.model_fields["schedule"].annotation),
    "train.clip_norm": (0.0, 1.0), "train.mixup": (0.0, 0.2), "train.cutmix": (0.0, 1.0),
    "train.class_weights": tuple(CLASS_WEIGHTS), "train.loss": tuple(LOSSES), "train.crop_from": (0, 16),
    "run.launcher": get_args(params.Launcher), "run.processes": (2, 1), "run.nodes": (1, 2),
}  # fmt: skip


@cache
def base() -> Params:
    return params.parse(change(on_cpu(read_params())))


def with_lines(**lines: Any) -> Params:
    """The base params with some lines changed, without reading them from YAML again."""
    config = base()
    for dotted, value in lines.items():
        section, key = dotted.replace("__", ".").split(".")
        config = config.model_copy(update={section: getattr(config, section).model_copy(update={key: value})})
    return config
