"""Threads give their results in order, and no more of them than fit into memory."""

import pytest

from pipeline.base import threads


def test_results_come_in_order_from_any_number_of_threads() -> None:
    """Each item's result once, in order; the first error is passed on."""
    for workers in (1, 2, 5):
        assert list(threads.ordered_map(lambda n: n * n, range(100), workers)) == [n * n for n in range(100)]
    assert list(threads.ordered_map(str, [], 2)) == []
    with pytest.raises(ZeroDivisionError):
        list(threads.ordered_map(lambda n: 1 // (n - 50), range(100), 2))


@pytest.mark.parametrize(("workers", "result_bytes", "most"), [(2, 1, 9), (64, 2**26, 6)])
def test_the_work_waits_for_the_reader(workers: int, result_bytes: int, most: int) -> None:
    """Few results wait, and of large ones no more than fit into 256 MiB, so memory does not grow."""
    begun: list[int] = []
    results = threads.ordered_map(begun.append, range(1000), workers, result_bytes=result_bytes)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert 1 <= len(begun) <= most
