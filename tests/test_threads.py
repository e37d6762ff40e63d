"""Threads give their results in order, and no more of them than fit into memory."""

import pytest

from pipeline.base import threads


def test_results_come_in_order_from_any_number_of_threads() -> None:
    """`ordered_map` gives each item's result once, in order, and passes on the first error."""
    for workers in (1, 2, 5):
        assert list(threads.ordered_map(lambda n: n * n, range(100), workers)) == [n * n for n in range(100)]
    assert list(threads.ordered_map(str, [], 2)) == []
    with pytest.raises(ZeroDivisionError):
        list(threads.ordered_map(lambda n: 1 // (n - 50), range(100), 2))


def test_the_work_waits_for_the_reader() -> None:
    """Only a few items are worked on before their results are read, so memory does not grow."""
    begun: list[int] = []
    results = threads.ordered_map(begun.append, range(1000), 2)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert 1 <= len(begun) <= 9


def test_large_results_that_wait_are_few() -> None:
    """Results of 64 MiB that wait for the reader take 256 MiB, for any number of threads."""
    begun: list[int] = []
    results = threads.ordered_map(begun.append, range(1000), 64, result_bytes=2**26)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert 1 <= len(begun) <= 6
