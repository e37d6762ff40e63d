"""Has experiments run in DVC's queue until all have ended, and shows how far they are. A kill loses no finished one."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.base.errors import Stopped
from pipeline.studies import experiments
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


def run(repo: Queue, orders: Sequence[Order], jobs: int, ask: threading.Event, say: Say) -> None:
    """Run those that have not finished, until each has ended. Afterwards the failed ones have no experiment.

    `ask` is set when a person wants to stop: raises Stopped, when what ran has ended.
    """
    by_name = {order.name: order for order in orders}
    if not experiments.has_workers():
        experiments.remove(experiments.give_up(repo, by_name))
        if count := experiments.remove_copies():
            say(f"copies of the project that a killed worker of DVC's queue left: {count}, removed")
    if not (left := {*by_name} - {*experiments.finished()}):
        return
    state = experiments.waiting(repo)
    if not any(name in state for name in left):
        experiments.end_idle(repo)
    experiments.remove(left & {*state.failed})
    for name in (name for name in by_name if name in left and name not in state):
        if ask.is_set():
            break
        _queue(by_name[name], say)
    if others := {*experiments.waiting(repo).queued} - left:
        say(f"DVC's queue also has {', '.join(sorted(others))}; they run, too")
    if not ask.is_set():
        experiments.start(jobs)
    _follow(repo, {name: by_name[name] for name in by_name if name in left}, jobs, ask, say)


def _queue(order: Order, say: Say) -> None:
    say(f"{order.title}: queued as {order.name}")
    experiments.queue(order.name, order.values, order.targets, order.copied)


def _follow(repo: Queue, orders: Mapping[str, Order], jobs: int, ask: threading.Event, say: Say) -> None:
    told: dict[str, int] = dict.fromkeys(orders, 0)
    ended: set[str] = set()
    again: set[str] = set()  # those that have lost a worker once
    quiet = 0
    while True:
        state, finished = experiments.waiting(repo), experiments.finished()
        if ask.is_set():
            _stop(repo, orders, say)
        news = _tell(repo, orders, state, told, say)
        for name in [name for name in orders if name not in ended and (name in finished or name not in state)]:
            ended.add(name)
            news += 1
            say(f"{orders[name].title}: {'done' if name in finished else _failure(repo, name, state)}")
        if ended == {*orders}:
            return
        quiet = 0 if news else quiet + 1
        if quiet >= (PATIENCE if state.running else PATIENCE // 4):
            quiet = 0
            if not experiments.has_workers():
                lost = {*experiments.give_up(repo, {*orders} - ended)} - again
                again |= lost
                experiments.remove(lost)
                for name in sorted(lost):
                    say(f"{orders[name].title}: the worker of DVC's queue is gone")
                    _queue(orders[name], say)
                    told[name] = 0
                experiments.start(jobs)
        ask.wait(POLL)


def _tell(repo: Queue, orders: Mapping[str, Order], state: experiments.Waiting, told: dict[str, int], say: Say) -> int:
    """Print the epochs that are new; their number."""
    news = 0
    for name in (name for name in orders if name in state.running):
        lines = experiments.epochs(repo, state.running[name])
        for line in lines[told[name] :]:
            say(f"{orders[name].title}: {line}")
        news += len(lines) - told[name]
        told[name] = len(lines)
    return news


def _failure(repo: Queue, name: str, state: experiments.Waiting) -> str:
    reason = experiments.reason(repo, state.failed[name]) if name in state.failed else ""
    return f"failed{': ' if reason else ''}{reason}; more: dvc queue logs {name}"


def _stop(repo: Queue, orders: Mapping[str, Order], say: Say) -> None:
    """End what runs and take out what waits. Raises Stopped."""
    say("stopping: what runs is ended, and what waits is taken out of DVC's queue")
    state = experiments.waiting(repo)
    experiments.remove(state.queued & {*orders})
    experiments.interrupt({*experiments.waiting(repo).running} & {*orders})
    for _ in range(experiments.SECONDS):
        if not {*experiments.waiting(repo).running} & {*orders}:
            break
        threading.Event().wait(POLL)
    count = len({*orders} & {*experiments.finished()})
    raise Stopped(f"stopped; {count} of {len(orders)} of this start have finished; run again to go on")
