"""Which backend a process group has, what its processes exchange, and how a process leaves that of a GPU.

NCCL waits where gloo does not, so the call is written down.
"""

import os
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipeline.__main__ import main
from pipeline.base import linux
from pipeline.base.errors import Fault, UserError, exit_status
from pipeline.learning import collectives, elastic, parallel
from pipeline.learning.collectives import backend_for
from pipeline.learning.world import World
from pipeline.running import group, launchers
from tests.helpers.trainings import ALONE


def test_the_backend_is_the_chosen_one_or_that_of_the_device() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [backend_for(cpu, "auto"), backend_for(cuda, "auto"), backend_for(cuda, "gloo")] == ["gloo", "nccl", "gloo"]


@pytest.mark.parametrize("status", [0, 1])
def test_after_an_error_the_process_ends_and_leaves_its_group(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL would wait for ever where the group is destroyed, as it is without an error."""
    world, calls = World(0, 0, 1, torch.device("cuda", 0)), list[str]()

    def work() -> int:
        with group.process_group(world, "auto", 300, dist.HashStore()):
            if status:
                raise UserError(Fault("rank 0", "its disk is full", "failed", remedy="make room"))
        return 0

    for name, value in launchers.ALONE.items():
        monkeypatch.setenv(name, value)
    for name in ("init_process_group", "barrier", "destroy_process_group"):
        monkeypatch.setattr(dist, name, lambda *_, name=name, **__: calls.append(name))
    monkeypatch.setattr(dist, "is_initialized", lambda: calls[-1] != "destroy_process_group")
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(os, "_exit", lambda code: calls.append(f"exit {code}"))
    assert group.run_process(lambda: exit_status("some", work)) == status
    rest = ["exit 1"] if status else ["barrier", "destroy_process_group"]
    assert calls == ["init_process_group", *rest]


def test_a_process_of_a_launcher_is_run_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """`perennial rank` runs each stage in `run_process`."""
    monkeypatch.setattr(linux, "die_with", lambda parent: None)
    monkeypatch.setattr(group, "run_process", lambda work: 7)
    assert main(["rank", "train"]) == 7


def model_of(rank: int) -> nn.Module:
    """A model whose buffers differ by rank: float32 of several shapes, float64, counters, and flags."""
    net = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm1d(2))
    net.register_buffer("matrix", torch.arange(6.0).view(2, 3).t() + rank)
    net.register_buffer("fraction", torch.full((2,), 1 / 3 + rank, dtype=torch.float64))
    net.register_buffer("flags", torch.tensor([True, rank > 0]))
    net.register_buffer("count", torch.tensor(rank))
    return net


def test_buffers_of_every_type_become_those_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one message for each type of numbers; no shape, no order of memory and no value is lost."""
    sent: list[torch.Tensor] = []
    group = SimpleNamespace(is_initialized=lambda: True, get_world_size=lambda: 2)
    monkeypatch.setattr(collectives, "dist", group)
    nets = [model_of(rank) for rank in (0, 1, 0)]
    first, second, expected = (dict(net.named_buffers()) for net in nets)
    group.broadcast = lambda message, src: sent.append(message.clone())
    collectives.broadcast_buffers(nets[0])
    assert len(sent) == len({buffer.dtype for buffer in expected.values()}) == 4
    group.broadcast = lambda message, src: message.copy_(sent.pop(0))
    collectives.broadcast_buffers(nets[1])
    for after in (first, second):
        for name, buffer in expected.items():
            assert (after[name].dtype, after[name].shape) == (buffer.dtype, buffer.shape)
            assert torch.equal(after[name], buffer)


@pytest.mark.parametrize(("net", "times"), [(nn.BatchNorm2d(3), 0), (model_of(0), 1)], ids=["BatchNorm", "others"])
def test_a_step_begins_with_the_buffers_of_rank_0(net: nn.Module, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are others than BatchNorm's, which no step reads: a resume has those of rank 0."""
    calls: list[nn.Module] = []
    monkeypatch.setattr(collectives, "broadcast_buffers", calls.append)
    model = parallel.accumulating_model(net, ALONE, 3)
    for number in model.share.microbatches:
        with model.microbatch(number):
            assert calls == [net] * times


class GroupOfOne:
    """A process group of one process. It has no collective, so a call of one fails."""

    is_initialized, get_world_size = staticmethod(lambda: True), staticmethod(lambda: 1)


def test_one_process_exchanges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a group, as torchrun makes one: every collective returns what it was given. Elastic's sum calls none."""
    monkeypatch.setattr(collectives, "dist", GroupOfOne)
    net, values = nn.BatchNorm1d(2), torch.tensor([1.0, 2.0])
    collectives.barrier()
    collectives.broadcast_buffers(net)
    assert collectives.all_reduce_sum(values) is values
    assert collectives.all_reduce_max(values) is values
    assert collectives.broadcast_object(values) is values
    assert collectives.all_gather_object(values) == [values]
    rows = collectives.gather_in_order([values[None], values[None] + 1], [1, 0], 2)
    assert torch.cat(rows).tolist() == [[2.0, 3.0], [1.0, 2.0]]
    total = elastic.Sum(ALONE, 2)
    for shard in (0, 1):
        total.add(shard, [values * shard])
    assert total.finish()().tolist() == [0.5, 1.0]
    with pytest.raises(AttributeError):
        collectives.all_gather(values)


def test_ddp_does_not_warn_of_strides_and_does_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions of 1 × 1 in channels_last would warn on every start; test_ways.py has torch's own words."""
    text = "Grad strides do not match bucket view strides. This may indicate grad was not created"
    monkeypatch.setattr(parallel, "DistributedDataParallel", lambda model, **_: model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel.ddp(nn.Linear(1, 1), ALONE, True, 1)
        warnings.warn(text, stacklevel=1)
        with pytest.raises(UserWarning):
            warnings.warn("another", stacklevel=1)
