"""Records the state after each step of an epoch, and the calls of operators in one of its steps.

Two machines that disagree compare their records: the first step with another state, and in it the first operator that
gives other values for equal arguments.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from pipeline.base import files, schema
from pipeline.config import machine
from pipeline.engine.loop import Batch, Learner
from pipeline.training import chain
from pipeline.training.claim import Claim

WITHOUT_VALUES = "empty"  # in the name of an operator whose result has no values yet


@dataclass(frozen=True)
class Call:
    """A call of an operator: the SHA-256 of its arguments before it, and of its arguments and its result after it."""

    operator: str
    before: schema.Sha256
    after: schema.Sha256


@dataclass(frozen=True)
class Trace:
    """The record of one epoch on one machine."""

    __pydantic_config__ = schema.STRICT

    run: str  # the digest of code, data and settings
    cpu: str  # with the instructions that torch uses
    epoch: int
    states: list[schema.Sha256]  # after each step of the epoch
    step: int  # the step, from 1 on, with `calls`; 0: none
    calls: list[Call]


def unrecorded(claim: Claim, begin: Callable[[], None]) -> Callable[[], None]:
    """The same function; its calls of operators are in no trace. A batch is made in memory that has no values yet."""
    if not claim.trace:
        return begin

    def work() -> None:
        with _disable_current_modes():
            begin()

    return work


def follow(
    claim: Claim,
    steps: Iterator[Batch],
    learner: Learner,
    begin: Callable[[], None],
    first_step: int,
    epoch_steps: range,
) -> Iterator[Batch]:
    """The steps as they are. A trace that the claim asks for is written before its epoch's last step is yielded.

    `begin` makes the batch of the next step. `first_step`: the number (from 0) of the first of `steps`. `epoch_steps`:
    the numbers of those of `last_epoch`.
    """
    if not claim.trace:
        yield from steps
        return
    cpu = f"{machine.cpu_name()} with {torch.backends.cpu.get_cpu_capability()}"
    trace, next_step = Trace("", cpu, claim.last_epoch, [], claim.step, []), first_step
    while True:
        is_traced = claim.step > 0 and next_step == epoch_steps.start + claim.step - 1
        if is_traced:
            begin()
        with _Recorder(trace.calls) if is_traced else nullcontext():
            batch = next(steps, None)
        if batch is None:
            return
        if next_step in epoch_steps:
            trace.states.append(chain.sha256(learner.state_dict()))
        next_step += 1
        if next_step == epoch_steps.stop:
            files.write_json(Path(claim.trace), asdict(trace))
        yield batch


def difference(theirs: Trace, ours: Trace) -> str:
    """A sentence that names the first step, or the first operator, in which two traces of an epoch differ; or empty."""
    step = first_step(theirs, ours)
    for number, (their, our) in enumerate(zip(theirs.calls, ours.calls, strict=False), 1):
        if their == our:
            continue
        where = f"epoch {ours.epoch}, step {ours.step}, call {number}: "
        if their.operator != our.operator:
            return f"{where}{our.operator} here ({ours.cpu}), {their.operator} there ({theirs.cpu})"
        what = "other arguments" if their.before != our.before else "equal arguments, other values"
        return f"{where}{our.operator}: {what} here ({ours.cpu}) and there ({theirs.cpu})"
    if len(theirs.calls) != len(ours.calls):
        counts = f"{len(ours.calls)} calls of operators here, {len(theirs.calls)} there"
        return f"epoch {ours.epoch}, step {ours.step}: {counts}"
    return f"epoch {ours.epoch}, step {step}: another state here ({ours.cpu}) and there ({theirs.cpu})" if step else ""


def first_step(theirs: Trace, ours: Trace) -> int:
    """The first step of an epoch (from 1) after which two traces have other states; 0 if there is none."""
    return next((k for k, (a, b) in enumerate(zip_longest(theirs.states, ours.states), 1) if a != b), 0)


class _Recorder(TorchDispatchMode):
    """Adds each call of an operator inside the block to `calls`."""

    def __init__(self, calls: list[Call]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = calls

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        arguments = (args, kwargs or {})
        before = chain.sha256({"arguments": arguments})
        result = func(*args, **(kwargs or {}))
        if WITHOUT_VALUES not in str(func):
            self._calls.append(Call(str(func), before, chain.sha256({"arguments": arguments, "result": result})))
        return result
