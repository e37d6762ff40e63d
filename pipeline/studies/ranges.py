"""A file of ranges, and the trials that it stands for: a grid, or draws that follow from seed and number alone.

Trial k is the same for every number of trials, and the values of one setting do not depend on the other settings. So a
longer sweep begins with the trials of the shorter one.
"""

import difflib
import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from pipeline.base.errors import UserError
from pipeline.config import document
from pipeline.config.params import Section, Seed, Train

EXAMPLE = "docs/sweep.yaml has an example"
MOST = 1000  # trials
DIGITS = 3  # significant ones of a drawn number: a person can read and repeat it
ATTEMPTS = 1000  # draws until a trial differs from all before it
SECTION = "train."
REASONS = {  # why a setting of another section cannot be swept
    "data": "it chooses other images, and accuracies on other images cannot be compared",
    "split": "it chooses other validation images, and accuracies on other images cannot be compared",
    "prepare": "all trials read the same packed images",
    "evaluate": "it does not change the model",
    "run": "it does not change the model",
    "paths": "it does not change the model",
    "train.seed": "the best seed is luck, and says nothing about the next training",
}
Search = Literal["grid", "random", "tpe"]


class Range(Section):
    """All numbers from `start` to `to`; whole numbers, if both ends are whole."""

    start: Annotated[int | float, Field(alias="from")]
    to: int | float
    scale: Literal["linear", "log"] = "linear"

    @property
    def is_whole(self) -> bool:
        return isinstance(self.start, int) and isinstance(self.to, int)

    def at(self, share: float) -> int | float:
        """The value at a share (0 to below 1) of the range."""
        if self.scale == "log":
            exact = math.exp(math.log(self.start) + share * (math.log(self.to) - math.log(self.start)))
            found = round(exact) if self.is_whole else exact
        elif self.is_whole:
            found = math.floor(self.start + share * (self.to - self.start + 1))
        else:
            found = self.start + share * (self.to - self.start)
        return self.rounded(found)

    def rounded(self, value: float) -> int | float:
        """The value as it is tried: inside the range, a fraction with so many digits that a person can repeat it."""
        inside = min(max(value, self.start), self.to)
        return int(inside) if self.is_whole else min(max(float(f"{inside:.{DIGITS}g}"), self.start), self.to)


class File(Section):
    """The file as it is written; its params are checked one by one."""

    search: Search
    trials: Annotated[int, Field(ge=1, le=MOST)] | None = None
    seed: Seed = 0
    params: dict[str, Any]


Axis = Range | tuple[Any, ...]


@dataclass(frozen=True)
class Sweep:
    """What is to be tried."""

    name: str
    search: Search
    trials: int
    seed: int
    axes: Mapping[str, Axis]  # section.key → a range, or the values


@dataclass(frozen=True)
class Trial:
    """One choice of values; numbers begin at 1."""

    number: int
    values: Mapping[str, Any]


def read(path: Path) -> Sweep:
    """The content of a file of ranges. Raises UserError: one line per fault, with file, key, value, and the remedy."""
    if not path.is_file():
        raise UserError(f"{path}: not found; allowed: a file of ranges; {EXAMPLE}")
    raw = document.read(path)
    if not isinstance(raw, dict):
        raise UserError(f"{path}: {document.shortened(raw)} is not a table; allowed: search, params, …; {EXAMPLE}")
    document.check_plain_values(raw)
    try:
        file = File.model_validate(raw)
    except ValidationError as error:
        faults = [document.sentence(fault, File, {}) for fault in error.errors(include_url=False)]
        raise UserError("\n".join(f"{path}: {fault}; {EXAMPLE}" for fault in faults)) from None
    faults = [*_faults_of_trials(file), *(fault for key in file.params for fault in _faults_of_key(key))]
    faults += [fault for key, value in file.params.items() for fault in _faults_of_axis(key, value, file.search)]
    if not file.params:
        faults.append("params: {} is not allowed; allowed: settings and their values, such as train.lr: [0.01, 0.1]")
    if faults:
        raise UserError("\n".join(f"{path}: {fault}" for fault in faults))
    axes = {key: _axis(value) for key, value in file.params.items()}
    number = math.prod(len(axis) for axis in axes.values() if isinstance(axis, tuple))
    sweep = Sweep(path.stem, file.search, file.trials or number, file.seed, axes)
    if file.search == "grid" and number > MOST:
        raise UserError(f"{path}: params: {number:,} combinations; allowed: up to {MOST:,}; remove values, or random")
    if file.search != "grid" and sweep.trials > (most := combinations(sweep)):
        raise UserError(
            f"{path}: trials: {sweep.trials} is more than the {most} combinations of params; allowed: 1 to {most}, or "
            f"search: grid without this line"
        )
    return sweep


def _faults_of_trials(file: File) -> Iterator[str]:
    if file.search == "grid" and file.trials is not None:
        yield (
            f"trials: {file.trials} × search: grid, which tries every combination; remove this line, or search: random"
        )
    if file.search != "grid" and file.trials is None:
        yield f"trials: missing × search: {file.search}; allowed: 1 to {MOST}, such as trials: 12"


def _faults_of_key(key: str) -> Iterator[str]:
    section = key.partition(".")[0]
    if reason := REASONS.get(key, REASONS.get(section, "")):
        yield f"params: {key} cannot be tried: {reason}; allowed: train.<setting>"
    elif key.removeprefix(SECTION) not in Train.model_fields or not key.startswith(SECTION):
        near = difflib.get_close_matches(key.removeprefix(SECTION), Train.model_fields, n=1)
        guess = f"; did you mean {SECTION}{near[0]}?" if near else ""
        yield f"params: {key}: unknown setting{guess}; allowed: train.<setting> of params.yaml"


def _faults_of_axis(key: str, value: Any, search: Search) -> Iterator[str]:
    if isinstance(value, list):
        if not value or len({repr(one) for one in value}) < len(value):
            yield f"params: {key}: {document.shortened(value)} is not allowed; allowed: different values"
        return
    if not isinstance(value, dict):
        yield (
            f"params: {key}: {document.shortened(value)} is not allowed; allowed: a list such as [0.1, 0.2], or a "
            f"range such as {{from: 0.01, to: 0.1, scale: log}}"
        )
        return
    try:
        found = Range.model_validate(value)
    except ValidationError as error:
        faults = (document.sentence(fault, Range, {}) for fault in error.errors(include_url=False))
        # pydantic knows the field by a name that Python allows
        yield from (f"params: {key}.{fault}".replace("allowed: start, ", "allowed: from, ") for fault in faults)
        return
    if not found.start < found.to:
        yield f"params: {key}: from: {found.start} is not below to: {found.to}; exchange them, or give a list"
    if found.scale == "log" and found.start <= 0:
        yield f"params: {key}: from: {found.start} × scale: log; allowed: more than 0, or scale: linear"
    if search == "grid":
        yield f"params: {key}: a range × search: grid; allowed: a list of values, or search: random"


def _axis(value: Any) -> Axis:
    """A range or a list of values, as the file has them."""
    return tuple(value) if isinstance(value, list) else Range.model_validate(value)


def combinations(sweep: Sweep) -> int:
    """How many different trials there are, at least: a range of fractions counts as more than any sweep needs."""
    sizes = [
        len(axis) if isinstance(axis, tuple) else int(axis.to - axis.start) + 1 if axis.is_whole else MOST
        for axis in sweep.axes.values()
    ]
    return min(math.prod(sizes), MOST)


def grid(sweep: Sweep) -> list[Trial]:
    """Every combination, in the order of the file; the last setting changes first."""
    lists = [axis for axis in sweep.axes.values() if isinstance(axis, tuple)]
    chosen = itertools.product(*lists)
    return [Trial(number, dict(zip(sweep.axes, values, strict=True))) for number, values in enumerate(chosen, start=1)]


def random(sweep: Sweep, trials: int) -> list[Trial]:
    """So many draws, each different from all before it. Raises UserError if there are not so many."""
    found: list[Trial] = []
    for number in range(1, trials + 1):
        drawn = (_draw(sweep, number, attempt) for attempt in range(ATTEMPTS))
        known = [trial.values for trial in found]
        values = next((one for one in drawn if one not in known), None)
        if values is None:
            raise UserError(f"trials: {trials}: only {len(found)} different ones were found; ask for fewer")
        found.append(Trial(number, values))
    return found


def _draw(sweep: Sweep, number: int, attempt: int) -> dict[str, Any]:
    return {key: _pick(axis, share(f"{sweep.seed}:{number}:{attempt}:{key}")) for key, axis in sweep.axes.items()}


def _pick(axis: Axis, at: float) -> Any:
    return axis.at(at) if isinstance(axis, Range) else axis[int(at * len(axis))]


def share(text: str) -> float:
    """A number from 0 to below 1 that follows from a text alone, on every machine: the first 53 bits of its SHA-256."""
    return (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 11) / 2**53


def corners(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Combinations of all listed values and both ends of each range, the first ones: what a search may choose."""
    ends = [axis if isinstance(axis, tuple) else (axis.start, axis.to) for axis in sweep.axes.values()]
    for values in itertools.islice(itertools.product(*ends), MOST):
        yield dict(zip(sweep.axes, values, strict=True))
