"""Reads files that the pipeline wrote itself. One that is damaged is a UserError: the file, what is wrong, the remedy.

A JSON file has a schema: a frozen dataclass with `__pydantic_config__ = STRICT`, of plain values and the types below.
No file is trusted: none makes code run, and none takes memory by what it claims.
"""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from pipeline.base.errors import UserError

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
OPEN = ConfigDict(extra="ignore", strict=True)  # for a file of which little is read
TENSORS = ConfigDict(extra="forbid", arbitrary_types_allowed=True)  # for what torch.load read

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Side = Annotated[int, Field(ge=16, le=1024)]  # pixels, as in params.yaml
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[tuple[Name, ...], Field(min_length=1)]

Schema = TypeVar("Schema")


def checkout(path: Path) -> str:
    """The remedy for a damaged output of a stage."""
    return f"restore it (dvc checkout {path}), or make it anew (dvc repro)"


@contextmanager
def ours(path: Path, remedy: str, *damaged: type[Exception]) -> Iterator[None]:
    """Inside the block `path` is read: what is wrong with it, and any error of the `damaged` kinds, is a UserError."""
    kinds: tuple[type[Exception], ...] = (ValueError, csv.Error, *damaged)
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: not found; {remedy}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: a folder is where a file belongs; rm -r {path}, then {remedy}") from None
    except NotADirectoryError:
        raise UserError(f"{path}: {path.parent} is no folder; rm {path.parent}, then {remedy}") from None
    except ValidationError as error:
        raise UserError(f"{path}: damaged: {_first(error)}; {remedy}") from None
    except kinds as error:
        raise UserError(f"{path}: damaged: {_short(str(error))}; {remedy}") from None


def json_of(path: Path, schema: type[Schema], remedy: str) -> Schema:
    """The content of a JSON file as a `schema`. Raises UserError if it is not there, or is something else."""
    with ours(path, remedy):
        return TypeAdapter(schema).validate_json(path.read_bytes())


def checked(value: Any, schema: type[Schema]) -> Schema:
    """A value as a `schema`. Raises ValueError for another."""
    return TypeAdapter(schema).validate_python(value)


def _first(error: ValidationError) -> str:
    """The first fault, with its key."""
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, fault["loc"]))
    return _short(f"{where}: {fault['msg']}" if where else fault["msg"])


def _short(said: str) -> str:
    return " ".join(said.split())[:200]
