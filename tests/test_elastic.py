"""train.parallel: elastic gives the same weights, bit for bit, for any number of processes, also when it changes."""

import itertools
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import params
from pipeline.engine import elastic
from pipeline.engine.world import share
from pipeline.training import runs
from tests.conftest import change, read_params, write_params
from tests.test_interruption import ranks, start, wait_for
from tests.test_interruption import said as words_of
from tests.test_train import launch, outputs, run_ranks, small_world

STEPS, SHARDS, IMAGES = 4, 4, 12

# Trains for STEPS steps with the engine's own loop. For every case it is given (model, parallel, precision, optimizer,
# options) it writes a SHA-256 of the weights, and one of statistics, averages and counts with the loss scale's state.
TRAINING = """
    import hashlib, json, os, sys
    import torch
    from torch import nn
    from pipeline.models import network
    from pipeline.loader import sampler
    from pipeline.engine import determinism, distributed, loop
    from pipeline.engine.ema import Ema
    from pipeline.engine.loop import Batch, Totals, Recipe
    from pipeline.engine.choices import OPTIMIZERS, PARALLELS, PRECISIONS
    from pipeline.engine.world import World
    folder, steps, shards, count = sys.argv[1], *map(int, sys.argv[2:5])
    determinism.make_deterministic(1, True)
    world = World.from_env(os.environ, "cpu")

    def digest(tensors):
        found = hashlib.sha256()
        for tensor in tensors:
            found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def trained(name, parallel, precision_name, optimizer_name, options):
        net = network.build(name, 3, 0)
        if options.get("checkpointing"):
            network.checkpointed(net, name)
        precision = PRECISIONS[precision_name]("cpu")
        groups = network.parameter_groups(net, 1e-3, False)
        optimizer = OPTIMIZERS[optimizer_name](groups, 0.01, 0.9, True, (0.9, 0.999))
        net, optimizer = precision.prepare(net, optimizer)
        ema = Ema.of(net, options.get("ema", 0.0))
        parts = shards if parallel == "elastic" else world.size
        parallel_model = PARALLELS[parallel](net, world, True, parts)
        totals = Totals.zero(world.device, parts)

        def batches():
            for step in range(steps):
                source = torch.Generator().manual_seed(step)
                images = torch.randn(count, 3, 32, 32, generator=source)
                labels = torch.randint(3, (count,), generator=source)
                rows = torch.from_numpy(sampler.part(torch.arange(count).numpy(), world.share(parts), parts))
                rate = 1e-3 if optimizer_name == "adamw" else 0.01
                yield Batch(step, images[rows], labels[rows], labels[rows], rate, sampler.dropout_seed(0, step))

        recipe = Recipe(nn.CrossEntropyLoss(), precision, optimizer, ema, options.get("clip", 0.0))
        for _ in loop.train(parallel_model, batches(), recipe, totals):
            pass
        sums = distributed.all_reduce_sum(totals.sums).sum(0)
        state = json.dumps(precision.state_dict(optimizer), sort_keys=True, default=str)
        return digest([*net.parameters()]), digest([*net.buffers(), *ema.averages, sums]) + state

    with distributed.join(world, 300):
        for case in json.loads(sys.argv[5]):
            found = distributed.all_gather_object(trained(*case))
            assert len(set(found)) == 1 or case[1] != "elastic", "the processes differ"  # ddp's statistics are its own
            if world.is_main:
                with open(f"{folder}/{world.size}", "a") as table:
                    print(*found[0], *case, sep="\t", file=table)
"""

PLAIN = [(precision, optimizer) for precision in ("fp32", "bf16") for optimizer in ("sgd", "adamw")]
CASES: dict[str, list[tuple[str, str, str, str, dict[str, Any]]]] = {
    model: [
        *((model, "elastic", precision, optimizer, {}) for precision, optimizer in PLAIN),
        (model, "ddp", "fp32", "sgd", {}),
    ]
    for model in ("mobilenet_v3_small", "resnet18")
}
CASES["mobilenet_v3_small"] += [
    ("mobilenet_v3_small", "elastic", "fp16", "sgd", {"ema": 0.9, "clip": 1.0}),
    ("mobilenet_v3_small", "elastic", "fp32", "sgd", {"checkpointing": True}),
]


@pytest.mark.parametrize(
    "model",
    [
        "mobilenet_v3_small",
        pytest.param("resnet18", marks=pytest.mark.slow("another model; make test has the one with more kinds")),
    ],
)
def test_the_weights_are_one_for_every_number_of_processes(tmp_path: Path, model: str) -> None:
    """After some steps on 1, 2, 3 and 4 processes each case has one hash, but for plain ddp, which has four."""
    cases = CASES[model]
    for size in (1, 2, 3, 4):
        run_ranks(size, TRAINING, str(tmp_path), str(STEPS), str(SHARDS), str(IMAGES), json.dumps(cases))
    tables = [(tmp_path / str(size)).read_text().splitlines() for size in (1, 2, 3, 4)]
    for lines in zip(*tables, strict=True):
        weights, others, *case = (set(column) for column in zip(*(line.split("\t") for line in lines), strict=True))
        assert [len(part) for part in case] == [1] * 5
        assert (len(weights), len(others)) == ((1, 1) if case[1] == {"elastic"} else (4, 4)), lines
    checkpointed = sum("checkpointing" in options for *_, options in cases)  # it changes no byte
    assert len({line.split("\t")[0] for line in tables[0]}) == len(cases) - checkpointed


@given(shards=st.integers(1, 40), data=st.data())
def test_the_tree_does_not_depend_on_who_adds(shards: int, data: st.DataObject) -> None:
    """Sums of rounding numbers, taken by subtrees of any number of processes: the same bits."""
    size = data.draw(st.integers(1, shards))
    leaves = torch.from_numpy(np.random.default_rng(shards).normal(size=(shards, 5)).astype(np.float32))

    def grown(these: range) -> list[elastic.Subtree]:
        trees: list[elastic.Subtree] = []
        for shard in these:
            elastic.grow(trees, elastic.Subtree(shard, 1, leaves[shard].clone()))
        return trees

    alone = elastic.root(grown(range(shards)))
    together: list[elastic.Subtree] = []
    for rank in range(size):
        mine = share(shards, rank, size)
        trees = grown(mine)
        assert [(tree.first, tree.size) for tree in trees] == elastic.subtrees(mine)
        for tree in trees:
            elastic.grow(together, tree)
    assert torch.equal(elastic.root(together), alone)
    torch.testing.assert_close(alone, leaves.sum(0))


LINES: dict[str, Any] = {
    "train__parallel": "elastic", "train__shards": 4, "train__epochs": 8, "train__mixup": 0.2, "run__log_steps": 2,
    "train__model": "mobilenet_v3_small",  # its BatchNorm bears parts of two images
}  # fmt: skip


def with_processes(folder: Path, count: int) -> None:
    write_params(folder / "params.yaml", change(read_params(folder / "params.yaml"), run__processes=count))


def stop_in_epoch(folder: Path, epoch: int) -> None:
    """Start a run, and ask its last process to stop after so many epochs."""
    launcher = start(folder)
    wait_for(lambda: f"epoch {epoch}/" in words_of(folder) or launcher.poll() is not None, "not so far")
    ranks(launcher)[-1].send_signal(signal.SIGTERM)
    assert launcher.wait(600) == 75, words_of(folder)


def test_a_run_moves_to_another_number_of_processes_in_the_middle(tmp_path: Path) -> None:
    """Stopped on four processes, gone on with two and with three: the bytes of one process; the fingerprint is one."""
    straight = small_world(tmp_path / "straight", **LINES)
    launch(straight)
    folder = small_world(tmp_path / "moved", **LINES)
    for count, epoch in ((4, 1), (2, 4)):
        with_processes(folder, count)
        stop_in_epoch(folder, epoch)
    with_processes(folder, 3)
    again = launch(folder)
    assert "going on from step" in again.stderr
    assert outputs(folder) == outputs(straight)
    assert len(list((folder / "runs").iterdir())) == 1


def test_the_number_of_processes_is_in_the_fingerprint_of_the_others_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ddp begins another run with another number of processes; elastic goes on with the one it has."""
    folder = small_world(tmp_path, **LINES)
    monkeypatch.chdir(folder)
    found = {}
    for parallel, count in itertools.product(("ddp", "elastic"), (1, 2)):
        raw = change(read_params(folder / "params.yaml"), train__parallel=parallel, run__processes=count)
        write_params(folder / "params.yaml", raw)
        found[parallel, count] = runs.fingerprint(runs.decisive(params.load(), "packed"))
    assert found["ddp", 1] != found["ddp", 2]
    assert found["elastic", 1] == found["elastic", 2]
