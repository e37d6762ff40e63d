"""A file of ranges: which settings are tried, with which values, by which search."""

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

    def round_value(self, value: float) -> int | float:
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
    """A sweep: its search, its number of trials, and the values to try."""

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

    @property
    def settings(self) -> list[str]:
        """The values as params.yaml has them."""
        return [document.value_text(value) for value in self.values.values()]


def read(path: Path) -> Sweep:
    """The content of a file of ranges. Raises UserError; the key of each fault begins with the path of the file."""
    if not path.is_file():
        raise UserError(Fault(str(path), "not found", "missing", allowed="a file of ranges", remedy=EXAMPLE))
    raw = document.read(path)
    if not isinstance(raw, dict):
        allowed = "a table of search, params, …"
        raise UserError(Fault(str(path), document.short_text(raw), "damaged", allowed=allowed, remedy=EXAMPLE))
    if faults := _faults(raw):
        raise UserError(*(replace(fault, key=f"{path}: {fault.key}") for fault in faults))
    return _sweep(path.stem, File.model_validate(raw))


def _sweep(name: str, file: File) -> Sweep:
    axes = {
        key: tuple(value) if isinstance(value, list) else Range.model_validate(value)
        for key, value in file.params.items()
    }
    number = math.prod(len(axis) for axis in axes.values() if isinstance(axis, tuple))
    return Sweep(name, file.search, file.trials or number, file.seed, axes)


def _faults(raw: dict[str, Any]) -> list[Fault]:
    """The faults of the content of a file; the key of a fault is the key in the file."""
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
        yield Fault("params", key, "unknown", "", allowed)


def _faults_of_axis(key: str, value: Any, search: Search) -> Iterator[Fault]:
    text = document.short_text(value)
    if isinstance(value, list):
        if not value or len({repr(one) for one in value}) < len(value):
            yield Fault(key, text, "value", allowed="different values")
        return
    if not isinstance(value, dict):
        allowed = "a list such as [0.1, 0.2], or a range such as {from: 0.01, to: 0.1, scale: log}"
        yield Fault(key, text, "value", allowed=allowed)
        return
    try:
        limits = Range.model_validate(value)
    except ValidationError as error:
        for fault in (document.fault(one, Range, {}) for one in error.errors(include_url=False)):
            # pydantic knows the field by a name that Python allows
            yield replace(fault, key=f"{key}.{fault.key}", allowed=fault.allowed.replace("start, ", "from, "))
        return
    if not limits.start < limits.to:
        yield Fault(key, f"from {limits.start} to {limits.to}", "value", remedy="exchange them, or give a list")
    if limits.scale == "log" and limits.start <= 0:
        yield Fault(key, f"from: {limits.start} × scale: log", "pair", allowed="from above 0, or scale: linear")
    if search == "grid":
        yield Fault(key, "a range × search: grid", "pair", allowed="a list of values, or search: random")


def combinations(sweep: Sweep) -> int:
    """The number of different trials, at least: a range of fractions counts as MOST, more than any sweep needs."""
    sizes = [
        len(axis) if isinstance(axis, tuple) else int(axis.to - axis.start) + 1 if axis.is_whole else MOST
        for axis in sweep.axes.values()
    ]
    return min(math.prod(sizes), MOST)
