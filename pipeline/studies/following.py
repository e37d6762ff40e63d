"""Has experiments run in DVC's queue until all have ended, and shows how far they are. A kill loses no finished one."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.base.errors import Stopped
from pipeline.studies import experiments, queueing
from pipeline.studies.experiments import Queue

POLL = 1.0  # seconds between two looks at the queue
PATIENCE = 20  # looks without news, until the workers are asked whether they live; while nothing runs, fewer
Say = Callable[[str], None]


@dataclass(frozen=True)
class Order:
    """An experiment that is to be run."""

    name: str
    title: str  # what a person reads
    values: Mapping[str, Any]  # section.key → value
    targets: Sequence[str]  # stages
    copied: Sequence[str]  # files in no commit that it needs


def run(queue: Queue, orders: Sequence[Order], jobs: int, ask: threading.Event, say: Say) -> None:
    """Run those that have not finished, until each has ended. Afterwards the failed ones have no experiment.

    `ask` is set when a person wants to stop: raises Stopped, when what ran has ended.
    """
    by_name = {order.name: order for order in orders}
    if not experiments.has_workers():
        experiments.remove(_recover(queue, by_name, say))
    if not (left := {*by_name} - {*experiments.finished(queue)}):
        return
    state = experiments.waiting(queue)
    if not any(name in state for name in left):
        experiments.end_idle(queue)
    experiments.remove(left & {*state.failed})
    for name in (name for name in by_name if name in left and name not in state):
        if ask.is_set():
            break
        _queue(queue, by_name[name], say)
    if others := {*experiments.waiting(queue).queued} - left:
        say(f"DVC's queue also has {', '.join(sorted(others))}; they run, too")
    if not ask.is_set():
        experiments.start(jobs)
    _follow(queue, {name: by_name[name] for name in by_name if name in left}, jobs, ask, say)


def _recover(queue: Queue, names: Iterable[str], say: Say) -> list[str]:
    """Mend what killed workers left; the experiments that ran, which are failed now."""
    lost, copies, cut = experiments.recover(queue, names)
    if copies:
        say(f"copies of the project that a killed worker of DVC's queue left: {copies}, removed")
    if cut:
        say(f"files of DVC's queue that a kill has cut, or left locked: {cut}, removed")
    return lost


def _queue(queue: Queue, order: Order, say: Say) -> None:
    say(f"{order.title}: queued as {order.name}")
    queueing.queue(queue.commit, order.name, order.values, order.targets, order.copied)


def _follow(queue: Queue, orders: Mapping[str, Order], jobs: int, ask: threading.Event, say: Say) -> None:
    told: dict[str, int] = dict.fromkeys(orders, 0)
    ended: set[str] = set()
    again: set[str] = set()  # those that have lost a worker once
    quiet = 0
    while True:
        state, finished = experiments.waiting(queue), experiments.finished(queue)
        if ask.is_set():
            _stop(queue, orders, say)
        news = _tell(queue, orders, state, told, say)
        for name in [name for name in orders if name not in ended and (name in finished or name not in state)]:
            ended.add(name)
            news += 1
            say(f"{orders[name].title}: {'done' if name in finished else _failure(queue, name, state)}")
        if ended == {*orders}:
            return
        quiet = 0 if news else quiet + 1
        if quiet >= (PATIENCE if state.running else PATIENCE // 4):
            quiet = 0
            if not experiments.has_workers():
                lost = {*_recover(queue, {*orders} - ended, say)} - again
                again |= lost
                experiments.remove(lost)
                for name in sorted(lost):
                    say(f"{orders[name].title}: the worker of DVC's queue is gone")
                    _queue(queue, orders[name], say)
                    told[name] = 0
                experiments.start(jobs)
        ask.wait(POLL)


def _tell(queue: Queue, orders: Mapping[str, Order], state: experiments.Waiting, told: dict[str, int], say: Say) -> int:
    """Print the epochs that are new; their number."""
    news = 0
    for name in (name for name in orders if name in state.running):
        lines = experiments.epochs(queue, state.running[name])
        for line in lines[told[name] :]:
            say(f"{orders[name].title}: {line}")
        news += len(lines) - told[name]
        told[name] = len(lines)
    return news


def _failure(queue: Queue, name: str, state: experiments.Waiting) -> str:
    reason = experiments.reason(queue, state.failed[name]) if name in state.failed else ""
    return f"failed{': ' if reason else ''}{reason}; more: dvc queue logs {name}"


def _stop(queue: Queue, orders: Mapping[str, Order], say: Say) -> None:
    """End what runs and take out what waits. Raises Stopped."""
    say("stopping: what runs is ended, and what waits is taken out of DVC's queue")
    state = experiments.waiting(queue)
    experiments.remove(state.queued & {*orders})
    experiments.interrupt({*experiments.waiting(queue).running} & {*orders})
    for _ in range(experiments.SECONDS):
        if not {*experiments.waiting(queue).running} & {*orders}:
            break
        time.sleep(POLL)
    count = len({*orders} & {*experiments.finished(queue)})
    raise Stopped(f"stopped; {count} of {len(orders)} of this start have finished; run again to go on")
