"""The launcher hands the signals that it receives to its processes, and lets a Watch look after them."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType

from pipeline.engine.stopping import GRACE_SECONDS, SIGNALS
from pipeline.engine.watchdog import Watch

# The signals that asked this launcher to stop, and that its processes have received → when (time.monotonic())
FORWARDED: dict[int, float] = {}


@contextmanager
def supervised(pids: Callable[[], Mapping[str, int]], timeout_seconds: int, waits: bool = True) -> Iterator[Watch]:
    """In the block, the processes `pids()` (process ids by name) are watched, and SIGNALS go to them.

    The launcher ends when they end. A signal before there are any ends the launcher; a signal right after they have
    stopped is ignored. Each signal is forwarded once: when DVC is terminated, a second one follows, and would meet
    processes that are saving. A second one kills the processes that are stopped. Ctrl-Z stops the processes too,
    because torchrun's are not in the terminal's job. `waits`: see Watch.
    """
    watch = Watch(pids, timeout_seconds, waits)

    def forward(number: int, _: FrameType | None) -> None:
        if not pids():
            # The processes have stopped, and this launcher is about to say so. After GRACE_SECONDS it hangs.
            if any(time.monotonic() - then < GRACE_SECONDS for then in FORWARDED.values()):
                return
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        watch.forward(number, again=number in FORWARDED)
        FORWARDED.setdefault(number, time.monotonic())

    def pause(_: int, __: FrameType | None) -> None:
        _send(signal.SIGSTOP, [*pids().values(), os.getpid()])
        _send(signal.SIGCONT, pids().values())  # runs after somebody has continued this process

    handlers = dict.fromkeys(SIGNALS, forward) | {signal.SIGTSTP: pause}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield watch
    finally:
        watch.close()
        for number, handler in before.items():
            # After a request to stop the command still has to say how the processes stopped.
            signal.signal(number, signal.SIG_IGN if FORWARDED else handler)


def _send(number: int, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
