"""What `make_learner` and `export_weights` take from the params arrives in the optimizer, the average and the file."""

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from pipeline.config import params
from pipeline.config.params import Params
from pipeline.learning import state
from pipeline.learning.loop import Learner
from tests.conftest import on_cpu, read_params
from tests.helpers.trainings import ALONE

SETTINGS: dict[str, Any] = {
    "lr": 0.25, "momentum": 0.75, "nesterov": True, "weight_decay": 0.125, "head_lr_factor": 4.0, "clip_norm": 2.0,
    "ema_decay": 0.5, "decay_norm_and_bias": False,
}  # fmt: skip


class Net(nn.Module):
    """A backbone of one layer, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(2, 3), nn.Linear(3, 2)


def config_with(**settings: Any) -> Params:
    return params.parse(on_cpu(read_params(), **{f"train__{name}": value for name, value in settings.items()}))


def learner_of(**settings: Any) -> Learner:
    return state.make_learner(config_with(**settings), Net(), {"a": 1, "b": 1}, ALONE)


@pytest.mark.parametrize("nesterov", [True, False])
def test_the_optimizer_has_the_settings(nesterov: bool) -> None:
    """The base rate, the momentum, Nesterov or not, the decay of weights alone, and the factor of the head."""
    learner = learner_of(**SETTINGS | {"nesterov": nesterov})
    assert learner.clip_norm == 2.0
    groups = learner.optimizer.param_groups
    assert {(group["lr"], group["momentum"], group["nesterov"]) for group in groups} == {(0.25, 0.75, nesterov)}
    assert [(group["weight_decay"], group["scale"]) for group in groups] == [(0.125, 1), (0, 1), (0.125, 4), (0, 4)]


def test_a_global_batch_has_so_many_microbatches() -> None:
    """Shards with elastic, on any number of processes; else the processes times the parts of each."""
    two = replace(ALONE, size=2)
    train = config_with(accumulation_steps=2).train
    elastic = train.model_copy(update={"parallel": "elastic", "shards": 8})
    assert [state.microbatch_count(train, world) for world in (ALONE, two)] == [2, 4]
    assert [state.microbatch_count(elastic, world) for world in (ALONE, two)] == [8, 8]


@pytest.mark.parametrize("export", ["last", "best", "ema"])
def test_the_average_is_exported_if_it_is_asked_for(export: str) -> None:
    """Else the weights of the model, though there is an average."""
    settings = SETTINGS | {"export": export}
    learner = learner_of(**settings)
    for average in learner.ema.averages:
        average.zero_()
    weights = state.export_weights(learner, config_with(**settings).train)
    assert any(bool(weight.any()) for weight in weights.values()) is (export != "ema")
