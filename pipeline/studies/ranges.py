"""A file of ranges, and the trials that it stands for: a grid, or draws that follow from seed and number alone.

Trial k is the same for every number of trials, and the values of one setting do not depend on the other settings. So a
longer sweep begins with the trials of the shorter one.
"""

import difflib
import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from pipeline.base.errors import Fault, UserError
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
    """The content of a file of ranges. Raises UserError; the key of each fault begins with the path of the file."""
    if not path.is_file():
        raise UserError(Fault(str(path), "not found", "missing", allowed="a file of ranges", remedy=EXAMPLE))
    raw = document.read(path)
    if not isinstance(raw, dict):
        allowed = "a table of search, params, …"
        raise UserError(Fault(str(path), document.shortened(raw), "damaged", allowed=allowed, remedy=EXAMPLE))
    if faults := _faults(raw):
        raise UserError(*(replace(fault, key=f"{path}: {fault.key}") for fault in faults))
    return _sweep(path.stem, File.model_validate(raw))


def _sweep(name: str, file: File) -> Sweep:
    axes = {key: _axis(value) for key, value in file.params.items()}
    number = math.prod(len(axis) for axis in axes.values() if isinstance(axis, tuple))
    return Sweep(name, file.search, file.trials or number, file.seed, axes)


def _faults(raw: dict[str, Any]) -> list[Fault]:
    """What is wrong with the content of a file; the key of a fault is the key in the file."""
    try:
        file = File.model_validate(raw)
    except ValidationError as error:
        faults = [document.fault(one, File, {}) for one in error.errors(include_url=False)]
        return [replace(fault, remedy=fault.remedy or EXAMPLE) for fault in faults]
    faults = [*_faults_of_trials(file), *(fault for key in file.params for fault in _faults_of_key(key))]
    faults += [fault for key, value in file.params.items() for fault in _faults_of_axis(key, value, file.search)]
    if not file.params:
        faults.append(Fault("params", "{}", "value", allowed="settings and their values, as train.lr: [0.01, 0.1]"))
    return faults or [*_faults_of_number(_sweep("", file))]


def _faults_of_number(sweep: Sweep) -> Iterator[Fault]:
    if sweep.search == "grid" and sweep.trials > MOST:
        remedy = "remove values, or search: random"
        yield Fault("params", f"{sweep.trials:,} combinations", "value", allowed=f"up to {MOST:,}", remedy=remedy)
    if sweep.search != "grid" and sweep.trials > (most := combinations(sweep)):
        allowed = f"1 to {most}, the combinations of params; or search: grid without this line"
        yield Fault("trials", str(sweep.trials), "value", allowed=allowed)


def _faults_of_trials(file: File) -> Iterator[Fault]:
    if file.search == "grid" and file.trials is not None:
        remedy = "remove this line, or search: random"
        yield Fault("trials", f"{file.trials} × search: grid", "pair", "a grid has every combination", remedy=remedy)
    if file.search != "grid" and file.trials is None:
        yield Fault("trials", f"missing × search: {file.search}", "missing", allowed=f"1 to {MOST}, such as trials: 12")


def _faults_of_key(key: str) -> Iterator[Fault]:
    allowed, name = "train.<setting> of params.yaml", key.removeprefix(SECTION)
    if reason := REASONS.get(key, REASONS.get(key.partition(".")[0], "")):
        yield Fault("params", key, "value", reason, allowed)
    elif name not in Train.model_fields or not key.startswith(SECTION):
        near = difflib.get_close_matches(name, Train.model_fields, n=1)
        yield Fault("params", key, "unknown", "", allowed, f"did you mean {SECTION}{near[0]}?" if near else "")


def _faults_of_axis(key: str, value: Any, search: Search) -> Iterator[Fault]:
    shown = document.shortened(value)
    if isinstance(value, list):
        if not value or len({repr(one) for one in value}) < len(value):
            yield Fault(key, shown, "value", allowed="different values")
        return
    if not isinstance(value, dict):
        allowed = "a list such as [0.1, 0.2], or a range such as {from: 0.01, to: 0.1, scale: log}"
        yield Fault(key, shown, "value", allowed=allowed)
        return
    try:
        found = Range.model_validate(value)
    except ValidationError as error:
        for fault in (document.fault(one, Range, {}) for one in error.errors(include_url=False)):
            # pydantic knows the field by a name that Python allows
            yield replace(fault, key=f"{key}.{fault.key}", allowed=fault.allowed.replace("start, ", "from, "))
        return
    if not found.start < found.to:
        yield Fault(key, f"from {found.start} to {found.to}", "value", remedy="exchange them, or give a list")
    if found.scale == "log" and found.start <= 0:
        yield Fault(key, f"from: {found.start} × scale: log", "pair", allowed="from above 0, or scale: linear")
    if search == "grid":
        yield Fault(key, "a range × search: grid", "pair", allowed="a list of values, or search: random")


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
