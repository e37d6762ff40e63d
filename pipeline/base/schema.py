"""Reads files that the pipeline wrote. A damaged one is a UserError: the file, what is wrong, and the remedy.

The schema of a JSON file is a frozen dataclass with `__pydantic_config__ = STRICT`, of plain values and the types
below. No file is trusted: none can run code, or make the reader allocate memory for a size that the file only states.
"""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from pipeline.base.errors import Fault, UserError, damaged, missing


def _check_unique(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names. Raises ValueError if two are equal."""
    if len(set(names)) < len(names):
        raise ValueError("one is there twice")
    return names


STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
OPEN = ConfigDict(extra="ignore", strict=True)  # for a file whose other keys are not read
TENSORS = ConfigDict(extra="forbid", arbitrary_types_allowed=True)  # for what torch.load read

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Side = Annotated[int, Field(ge=16, le=1024)]  # pixels, as in params.yaml
Share = Annotated[float, Field(ge=0, le=1)]
Deviation = Annotated[float, Field(ge=1e-3, le=1e3)]  # of pixels, in units of a full value
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[tuple[Name, ...], Field(min_length=1), AfterValidator(_check_unique)]

Schema = TypeVar("Schema")


def checkout(path: Path) -> str:
    """The remedy for a damaged output of a stage."""
    return f"restore it (dvc checkout {path}), or make it again (perennial repro)"


@contextmanager
def reading(path: Path, remedy: str, *errors: type[Exception]) -> Iterator[None]:
    """A block that reads `path`. Raises UserError for a missing or damaged file, and for errors of types `errors`."""
    types: tuple[type[Exception], ...] = (ValueError, csv.Error, *errors)
    if path.exists() and not (path.is_file() or path.is_dir()):  # reading it could wait for ever, or never end
        raise _not_a_file(path, "a pipe or a device", f"rm {path}, then {remedy}")
    try:
        yield
    except FileNotFoundError:
        raise missing(path, remedy) from None
    except IsADirectoryError:
        raise _not_a_file(path, "a folder", f"rm -r {path}, then {remedy}") from None
    except NotADirectoryError:
        raise missing(path, f"rm {path.parent}, then {remedy}", f"{path.parent} is not a folder") from None
    except types as error:
        raise damage(str(path), error, remedy) from None


def _not_a_file(path: Path, value: str, remedy: str) -> UserError:
    return UserError(Fault(str(path), value, "damaged", "it has to be a file", remedy=remedy))


def json_of(path: Path, schema: type[Schema], remedy: str) -> Schema:
    """The content of a JSON file as a `schema`. Raises UserError if the file is missing or does not fit."""
    with reading(path, remedy):
        return of_json(path.read_bytes(), schema)


def of_json(text: str | bytes, schema: type[Schema]) -> Schema:
    """The JSON text as a `schema`. Raises ValueError if it does not fit."""
    return TypeAdapter(schema).validate_json(text)


def validate(value: Any, schema: type[Schema]) -> Schema:
    """A value as a `schema`. Raises ValueError if it does not fit."""
    return TypeAdapter(schema).validate_python(value)


def damage(name: str, error: Exception, remedy: str) -> UserError:
    """The error for a file that was read with `error`. Of pydantic's errors it has the first, with its key."""
    reason = str(error)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        reason = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    return damaged(name, " ".join(reason.split())[:200], remedy)
