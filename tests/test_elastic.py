"""train.parallel: elastic gives the same weights, bit for bit, for any number of processes, also when it changes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.learning import elastic
from pipeline.learning.world import share
from tests.helpers.ranks import run_ranks
from tests.helpers.trainings import ALONE

STEPS, SHARDS, IMAGES = 4, 4, 12

PLAIN = [(precision, optimizer) for precision in ("fp32", "bf16") for optimizer in ("sgd", "adamw")]
Case = tuple[str, str, str, str, dict[str, Any]]  # model, way, precision, optimizer, options
CASES: dict[str, list[Case]] = {
    "mobilenet_v3_small": [
        *(("mobilenet_v3_small", "elastic", precision, optimizer, {}) for precision, optimizer in PLAIN),
        ("mobilenet_v3_small", "ddp", "fp32", "sgd", {}),
        ("mobilenet_v3_small", "elastic", "fp16", "sgd", {"ema": 0.9, "clip": 1.0}),
        *(("mobilenet_v3_small", way, "fp32", "sgd", {"checkpointing": True}) for way in ("ddp", "elastic")),
    ],
    "resnet18": [("resnet18", "elastic", "bf16", "sgd", {}), ("resnet18", "elastic", "fp32", "adamw", {})],
}


# Elastic in fp32, plain ddp, fp16 with an average, and checkpointing.
FEW = [CASES["mobilenet_v3_small"][0], *CASES["mobilenet_v3_small"][-4:]]
FURTHER = pytest.mark.nightly("four numbers of processes, every case; make test-ci has two numbers and five cases")


@pytest.mark.slow("trainings of one to four processes; make test has the tree that adds in one order")
@pytest.mark.parametrize(
    ("cases", "sizes"),
    [
        pytest.param(FEW, (1, 3), id="few"),
        *(pytest.param(cases, (1, 2, 3, 4), marks=FURTHER, id=model) for model, cases in CASES.items()),
    ],
)
def test_the_weights_are_one_for_every_number_of_processes(
    tmp_path: Path, cases: list[Case], sizes: tuple[int, ...]
) -> None:
    """After some steps on so many processes each case has one hash. Plain ddp has one for each number."""
    for size in sizes:
        run_ranks(size, "steps", str(tmp_path), str(STEPS), str(SHARDS), str(IMAGES), json.dumps(cases))
    tables = [(tmp_path / str(size)).read_text().splitlines() for size in sizes]
    for lines in zip(*tables, strict=True):
        weights, others, *case = (set(column) for column in zip(*(line.split("\t") for line in lines), strict=True))
        assert [len(part) for part in case] == [1] * 5
        different = 1 if case[1] == {"elastic"} else len(sizes)
        assert (len(weights), len(others)) == (different, different), lines
    repeated = sum("checkpointing" in options for *_, options in cases)  # it changes no byte
    assert len({line.split("\t")[0] for line in tables[0]}) == len(cases) - repeated


def test_as_many_shards_train_what_as_many_processes_of_ddp_train(tmp_path: Path) -> None:
    """So elastic costs no accuracy against ddp with BatchNorm over as many images. Two gradients have one order."""
    none: dict[str, object] = {}
    cases = [("mobilenet_v3_small", parallel, "fp32", "sgd", none) for parallel in ("elastic", "ddp")]
    run_ranks(2, "steps", str(tmp_path), str(STEPS), "2", str(IMAGES), json.dumps(cases))
    elastic_line, ddp_line = (tmp_path / "2").read_text().splitlines()
    assert elastic_line.split("\t")[0] == ddp_line.split("\t")[0]


@given(shards=st.integers(1, 40), data=st.data())
def test_the_tree_does_not_depend_on_who_adds(shards: int, data: st.DataObject) -> None:
    """Sums that round have the same bits for every number of processes."""
    size = data.draw(st.integers(1, shards))
    leaves = torch.from_numpy(np.random.default_rng(shards).normal(size=(shards, 5)).astype(np.float32))

    def grow(these: range) -> list[elastic.Subtree]:
        trees: list[elastic.Subtree] = []
        for shard in these:
            elastic.grow(trees, elastic.Subtree(shard, 1, leaves[shard].clone()))
        return trees

    alone = elastic.root(grow(range(shards)))
    together: list[elastic.Subtree] = []
    for rank in range(size):
        mine = share(shards, rank, size)
        trees = grow(mine)
        assert [(tree.first, tree.size) for tree in trees] == elastic.subtrees(mine)
        for tree in trees:
            elastic.grow(together, tree)
    assert torch.equal(elastic.root(together), alone)
    torch.testing.assert_close(alone, leaves.sum(0))


def test_the_tree_adds_in_float32_from_the_right() -> None:
    """Of seven leaves the subtrees are 0-3, 4-5 and 6, added as (0-3) + ((4-5) + 6), each sum rounded to float32."""
    values = [1e8, 0.0, 0.0, 0.0, 3.0, 0.0, 3.0]  # next to 1e8, float32 has steps of 8
    trees: list[elastic.Subtree] = []
    for shard, value in enumerate(values):
        elastic.grow(trees, elastic.Subtree(shard, 1, torch.tensor([value])))
    assert elastic.root(trees).item() == 1e8 + 8  # 6 is rounded to 8; from the left, 3 is lost twice


def test_a_leaf_is_float32() -> None:
    """Gradients of any type are added as float32, and the mean divides by the number of shards."""
    tree = elastic.Sum(ALONE, 2)
    for shard, (first, dtype) in enumerate(((1e8, torch.float64), (3.0, torch.bfloat16))):
        tree.add(shard, [torch.tensor([first], dtype=dtype), torch.tensor([1.0, 2.0], dtype=dtype)])
    mean = tree.finish()()
    assert mean.dtype == torch.float32
    assert mean.tolist() == [5e7, 1, 2]  # 1e8 + 3 is 1e8 in float32


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [([1_553_600, 3_000_000, 2_000_000], [[2, 1, 0]]), ([1_553_601, 3_000_000, 2_000_000], [[2, 1], [0]])],
)
def test_a_bucket_has_25_mebibytes_at_most(sizes: list[int], groups: list[list[int]]) -> None:
    """From the last parameter to the first; one number more begins another bucket."""
    made = elastic.buckets([torch.nn.Parameter(torch.empty(size, device="meta")) for size in sizes])
    assert [[sizes.index(parameter.numel()) for parameter in bucket] for bucket in made] == groups
