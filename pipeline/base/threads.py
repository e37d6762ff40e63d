"""Work in threads. The results keep the order of the items."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

RESULT_BYTES = 2**28  # the most bytes that finished results may take while they wait for the reader

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    workers: int,
    title: str = "images",
    result_bytes: int = 0,
) -> Iterator[Result]:
    """`work(item)` for each item, in the order of the items, computed in `workers` threads.

    On a terminal, a progress bar with this title counts images. Threads are enough: Pillow and hashlib release the
    interpreter's lock. When the process is killed, no thread is left.
    At most 4 items per worker are under way, so memory does not grow with the number of items. `result_bytes` is the
    size of one result: if the results under way would take more than RESULT_BYTES, fewer items are under way.
    """
    from tqdm import tqdm  # here, because predict imports this module and needs no bar

    pool, remaining = ThreadPoolExecutor(workers), iter(items)
    under_way = max(1, min(4 * workers, RESULT_BYTES // max(result_bytes, 1)))
    try:
        window: deque[Future[Result]] = deque(pool.submit(work, item) for item in islice(remaining, under_way))
        with tqdm(total=len(items), desc=title, unit=" images", disable=None) as bar:
            while window:
                yield window.popleft().result()
                window.extend(pool.submit(work, item) for item in islice(remaining, 1))
                bar.update()
    finally:
        pool.shutdown(cancel_futures=True)


def prefetch(items: Iterator[Item], ahead: int) -> Iterator[Item]:
    """The same items, made ahead of the reader, in order.

    `ahead`: a thread makes so many items ahead. 0: the thread of the reader makes each item before it gets the one
    before.
    """
    end = object()
    with ThreadPoolExecutor(1, "prefetch") as pool:
        start = pool.submit if ahead else begun
        futures = deque(start(next, items, end) for _ in range(ahead or 1))
        while (item := futures.popleft().result()) is not end:
            futures.append(start(next, items, end))
            yield item  # type: ignore[misc]


def begun(work: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """`work(*arguments)`, computed in this thread. An error is raised where the result is asked for."""
    future = Future[Result]()
    try:
        future.set_result(work(*arguments))
    except Exception as error:
        future.set_exception(error)
    return future
