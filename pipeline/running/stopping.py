"""A request to stop. The handler of a signal notes it, and all processes read it at the same step.

The request is one of the numbers that all processes exchange at a step that is due (learning/readout.py): on a CPU at
each step, on a GPU at each `run.log_steps`-th. So no process waits for another one, and all save the same step.

If the launcher ends, the kernel sends TERM to its processes (linux.die_with). A process that cannot run its
handler, because it waits for a silent one, is ended by its launcher (watchdog.py), or when its exchange times out.
"""

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pipeline.base.errors import Stopped
from pipeline.learning.world import World
from pipeline.running.exits import GRACE_SECONDS, SIGNALS

LAUNCHER = 0  # instead of the number of a signal: the launcher has ended


@contextmanager
def requests(world: World) -> Iterator[Callable[[], int]]:
    """In the block a signal asks this process to stop. Yields a function that returns the request, or 0."""
    launcher, request = os.getppid(), 0

    def note(number: int, _: object) -> None:
        nonlocal request
        if not request:
            signal.alarm(GRACE_SECONDS)  # its default action ends the process even if Python hangs
            request = (world.rank + 1) << 8 | (number if os.getppid() == launcher else LAUNCHER)
            if world.is_main:
                announce()

    previous_handlers = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield lambda: request
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        signal.alarm(0)


def stopped(request: int, step: int, steps: int) -> Stopped:
    """What ends the training after a step that is saved: which process wanted to stop, and why."""
    rank, number = (request >> 8) - 1, request & 0xFF
    reason = "its launcher ended" if number == LAUNCHER else signal.Signals(number).name
    return Stopped(f"stopped by process {rank}: {reason}; saved at step {step} of {steps}; run again to go on")


def announce() -> None:
    """Print that the training will stop. Do not wait for a reader of stderr that does not read."""
    with suppress(OSError):  # stderr may be closed
        if select.select([], [2], [], 0)[1]:
            line_break = "\n" if os.isatty(2) else ""  # after the progress bar
            text = f"{line_break}train: stopping after this step, and saving it; the next run goes on from there\n"
            os.write(2, text.encode())
