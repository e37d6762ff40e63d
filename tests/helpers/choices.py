"""Machines, the choices of each option, and params with some lines changed, for tests of what is refused."""

from functools import cache
from typing import Any, get_args

from pipeline.config import params
from pipeline.config.machine import Machine
from pipeline.config.params import Params, Train
from tests.conftest import change, on_cpu, read_params

CPU_ONLY = Machine(cuda_devices=0, apex="missing", compiler=True)
TWO_GPUS = Machine(cuda_devices=2, apex="usable", compiler=True)
PRECISION, PARALLEL = get_args(params.Precision), get_args(params.Parallel)
SYNC_BN = get_args(Train.model_fields["sync_bn"].annotation)
MEMORY_FORMAT = get_args(Train.model_fields["memory_format"].annotation)


@cache
def base() -> Params:
    return params.parse(change(on_cpu(read_params())))


def with_lines(**lines: Any) -> Params:
    """The base params with some lines changed, without reading them from YAML again."""
    config = base()
    for dotted, value in lines.items():
        section, key = dotted.split("__")
        config = config.model_copy(update={section: getattr(config, section).model_copy(update={key: value})})
    return config
