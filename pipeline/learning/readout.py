"""What the host reads from the device while a training runs, without waiting for it.

All values of a step that is due are copied together. On a GPU they are read at the next step that is due. The device
has finished the copy long before, so its queue never runs empty. The end of an epoch is read at once, because the
validation waits for the device anyway.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pipeline.learning import collectives
from pipeline.learning.loop import Totals
from pipeline.learning.world import World


@dataclass(frozen=True)
class Reading:
    """Values at the end of a step."""

    step: int  # the number of steps taken
    loss: float  # the sum over the images of this process since the epoch began
    correct: float  # predictions of them
    images: float
    broken_step: int  # of all processes: the first step with a loss that is not finite, or -1
    is_late: bool  # whether rank 0 has asked for a checkpoint at this step
    stop: int  # the request of a process to stop after this step, or 0 (running/stopping.py)
    of_all: tuple[float, float, float]  # at the end of an epoch: loss, correct and images of all processes


class Readout:
    """Copies values from the device. `is_delayed`: they are read at the next step that is due. As a rule, on a GPU."""

    def __init__(self, world: World, is_delayed: bool | None = None) -> None:
        self._world = world
        self.is_delayed = world.device.type == "cuda" if is_delayed is None else is_delayed
        self._copies: list[Callable[[], Reading]] = []  # begun, and not read

    def read(self, step: int, totals: Totals, is_late: bool, stop: int, at_once: bool) -> list[Reading]:
        """Begin to copy the values of this step. Returns the values of earlier steps that are not returned yet.

        All processes call this at the same steps. `at_once`: wait for the device, and return those of this step too.
        """
        self._copies.append(_begin_copy(step, totals, is_late and self._world.is_main, stop, at_once))
        count = len(self._copies) - (self.is_delayed and not at_once)
        ready, self._copies = self._copies[:count], self._copies[count:]
        return [read() for read in ready]

    def rest(self) -> list[Reading]:
        """The values of earlier steps that are not returned yet; waits for the device."""
        ready, self._copies = self._copies, []
        return [read() for read in ready]


def _begin_copy(step: int, totals: Totals, is_late: bool, stop: int, add_processes: bool) -> Callable[[], Reading]:
    """Begin to copy the values. Returns a function that waits for them.

    `add_processes`: `Reading.of_all` has the sums over all processes; otherwise those of this one.
    """
    own = [torch.full_like(totals.broken_step, value) for value in (is_late, stop)]
    # Neither `full_like` nor a copy to pinned memory waits for the device.
    flags = collectives.all_reduce_max(torch.stack([totals.broken_step, *own]))
    of_all = collectives.all_reduce_sum(totals.sums.clone()) if add_processes else totals.sums
    on_host = [values.to("cpu", non_blocking=True, copy=True) for values in (totals.sums, of_all, flags)]
    wait = _event(flags.device)

    def read() -> Reading:
        wait()
        # Added here: under Apex O1 a GPU would add float64 as float32.
        (loss, correct, images), of_all = (values.sum(0).tolist() for values in on_host[:2])
        broken_step, any_late, any_stop = on_host[2].tolist()
        return Reading(step, loss, correct, images, broken_step, bool(any_late), any_stop, tuple(of_all))

    return read


def _event(device: torch.device) -> Callable[[], None]:
    """A function that waits for everything that the device has been given until now."""
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event()
    event.record()
    return event.synchronize
