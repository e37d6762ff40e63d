"""The library kernels of a first step, which a resume compares (tests/test_kernel_names.py has the comparison)."""

from collections.abc import Iterator

import pytest

from pipeline.learning.graphs import CudaGraph, Graphs
from pipeline.learning.world import World
from pipeline.loader.batches import Batch
from pipeline.running import kernel_names
from pipeline.running.kernel_names import Names
from tests.gpu.training import NATIVE, Figures, batches, setup, state_digest, train


@pytest.mark.gpu(needs="cuda")
@pytest.mark.parametrize("precision", NATIVE)
def test_first_kernels(world: World, precision: str) -> Figures:
    """The profiler names the same library kernels in each start, with CUDA graphs, and for several microbatches. The
    bytes are those of steps without the profiler.
    """

    def begin(microbatches: int = 1, has_graphs: bool = False) -> tuple[Names, str]:
        """The kernels of the first of three steps, and the state after the last one."""
        ready, seen = setup(world, precision), []
        graphs = Graphs(CudaGraph.factory()) if has_graphs else None

        def steps() -> Iterator[Batch]:
            for batch in batches(world, 0, 3):
                train(ready, [batch], microbatches=microbatches, graphs=graphs)
                yield batch

        taken = list(kernel_names.watched(steps(), lambda *named: seen.append(named)))
        assert [batch.step for batch in taken] == [0, 1, 2]
        ((crops, names),) = seen
        assert crops == "32 × 32"
        return kernel_names.relative(names), state_digest(ready)

    first, state = begin()
    assert first, "the profiler names no library kernel"
    assert begin() == (first, state), "another start chooses other kernels"
    assert begin(has_graphs=True) == (first, state), "CUDA graphs have other kernels"
    alone = setup(world, precision)
    train(alone, batches(world, 0, 3))
    assert state_digest(alone) == state, "the profiler changes bytes"
    in_two, _ = begin(microbatches=2)
    assert begin(microbatches=2, has_graphs=True)[0] == in_two, "the passes before a recording are counted"
    return {"kernels": kernel_names.digests({"": first})[""][:16]}
