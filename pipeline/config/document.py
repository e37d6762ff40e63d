"""Reads the YAML document of the params and describes its faults in one line each. No setting is known here.

YAML is read with ruamel, as DVC reads it (`lr: 1e-4` is a number). Values are never converted: `"3"` is not 3.
"""

import difflib
import io
import reprlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML

from pipeline.base import files
from pipeline.base.errors import UserError, without_secrets

# The file that comes with the project has 8,000 bytes and 110 values in 3 levels.
MOST_BYTES, MOST_VALUES, DEEPEST = 100_000, 1_000, 10
LONGEST_SHOWN = 200  # characters of a value in a message
REPR = reprlib.Repr()
REPR.maxdict = REPR.maxlist = REPR.maxset = REPR.maxtuple = 3


def read(path: Path) -> Any:
    """The content of a YAML file. Raises UserError if it cannot be read, is too long, or is not YAML."""
    content = _content(path)
    try:
        return YAML(typ="safe", pure=True).load(content)
    except RecursionError:
        raise UserError(
            f"{path}: more than {DEEPEST} levels; allowed: tables in tables, as in the project's {path.name}"
        ) from None
    except Exception as error:  # for a value that does not exist, such as May 99, the parser raises any exception
        reason = shortened(" ".join(str(error).split()), str)
        raise UserError(f"{path}: not readable as YAML: {reason}; git diff {path.name} shows what changed") from None


def rewritten(text: str, values: Mapping[str, Any]) -> str:
    """A YAML document with other values (dotted key → value), in the form that DVC writes. Comments stay.

    A key that already has its value is not touched.
    """
    yaml = YAML()
    yaml.default_flow_style = False
    document = yaml.load(text)
    for dotted, value in values.items():
        *sections, key = dotted.split(".")
        table = document
        for section in sections:
            if table.get(section) is None:  # a table without a line in it
                table[section] = {}
            table = table[section]
        if isinstance(value, list) and isinstance(table.get(key), list):
            if table[key] != value:
                table[key][:] = value  # in place, so that [1, 2] stays in one line
        elif key not in table or table[key] != value:
            table[key] = value
    stream = io.StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def rewrite(path: Path, values: Mapping[str, Any]) -> None:
    """Write other values (dotted key → value) into a YAML file, as `rewritten` says."""
    files.write_text(path, rewritten(path.read_text(encoding="utf-8"), values))


def leaves(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in nested tables that is no table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def completed(raw: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The table `raw`, and below it the keys of `defaults` that it lacks, in tables within tables too.

    A key that `defaults` does not know stays. So does a value where `defaults` has a table. A table without a line in
    it, which YAML reads as null, is an empty table.
    """
    return defaults | {
        key: completed(value or {}, defaults[key]) if _are_tables(value, defaults.get(key)) else value
        for key, value in raw.items()
    }


def missing(raw: Mapping[str, Any], defaults: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The dotted keys of `defaults` that `raw` lacks; for a table that it lacks as a whole, the key of the table."""
    for key, value in defaults.items():
        if key not in raw:
            yield f"{before}{key}"
        elif _are_tables(raw[key], value):
            yield from missing(raw[key] or {}, value, f"{before}{key}.")


def _are_tables(value: Any, default: Any) -> bool:
    return isinstance(default, dict) and (value is None or isinstance(value, dict))


def _content(path: Path) -> bytes:
    """The bytes of a file. Raises UserError if it is not a plain file, or too long."""
    remedy = f"restore it: git checkout {path.name}"
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: not a plain file; {remedy}")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: not found; run from the project's folder, where {path.name} lies") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; give read access to it, or {remedy}") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{path}: more than {MOST_BYTES:,} bytes; allowed: up to that; {remedy}")
    return content


def check_plain_values(document: dict[Any, Any]) -> None:
    """Raise UserError for values that YAML knows and settings cannot have (see `_allowed_instead`), or for too many.

    An alias (`*name`) counts every time it is used, so a value that contains itself ends at the limit, too.
    """
    waiting: deque[tuple[tuple[str, ...], Any]] = deque([((), document)])
    seen = 0
    while waiting:
        where, value = waiting.popleft()
        seen += 1
        if len(where) > DEEPEST or seen > MOST_VALUES:
            raise UserError(
                f"{_name(where[:3])}: more than {DEEPEST} levels or {MOST_VALUES:,} values, where an alias (*) counts "
                f"every time; allowed: tables in tables, as in the project's params.yaml"
            )
        if allowed := _allowed_instead(value):
            raise UserError(f"{_name(where)}: {shortened(value)} is not allowed; allowed: {allowed}")
        if isinstance(value, dict):
            for key, inner in value.items():
                if not isinstance(key, str) or _allowed_instead(key):
                    raise UserError(
                        f"{_name(where)}: the key {shortened(key)} is not allowed; allowed: a word; quote it"
                    )
                waiting.append(((*where, key), inner))
        elif isinstance(value, list):
            waiting.extend(((*where, str(index)), inner) for index, inner in enumerate(value))


def _allowed_instead(value: Any) -> str:
    """What is allowed instead of a value that no setting can have; empty if a setting can have it."""
    if isinstance(value, str):
        return "" if value.isprintable() else "text without control characters, in one line"
    if isinstance(value, int):
        return "" if abs(value) < 2**63 else "a whole number of less than 64 bits"
    plain = value is None or isinstance(value, float | dict | list)
    return "" if plain else "text, numbers, true, false, lists and tables; put text into quotes"


def _name(where: Sequence[str]) -> str:
    """A position in the document, with dots between the keys."""
    return ".".join(shortened(part, str) for part in where) or "params.yaml"


def shortened(value: Any, text: Callable[[Any], str] = repr) -> str:
    """A value as text for one line of a message: printable, and cut if it is long. It may contain itself."""
    if isinstance(value, int) and abs(value) >= 2**63:
        return f"a number of {value.bit_length():,} bits"
    words = without_secrets(text(value) if isinstance(value, str | float | int) else REPR.repr(value))
    words = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in " ".join(words.split()))
    return words if len(words) <= LONGEST_SHOWN else f"{words[:LONGEST_SHOWN]}… ({len(words):,} characters)"


def sentence(fault: ErrorDetails, model: type[BaseModel], patterns: Mapping[str, str]) -> str:
    """One fault that pydantic found, as `path: value is not allowed; allowed: …`.

    `model` describes the whole document. `patterns` has a description of each regular expression in it.
    """
    location = [str(part) for part in fault["loc"]]
    path, value = _name(location), shortened(fault["input"])
    if fault["type"] == "extra_forbidden":
        known = list(_section(model, location[:-1]).model_fields)
        near = difflib.get_close_matches(location[-1], known, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else ""
        return f"{path}: unknown key (value {value}){guess}; allowed: {', '.join(known)}"
    if fault["type"] == "literal_error":
        allowed = fault["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
    elif fault["type"] == "string_pattern_mismatch":
        allowed = patterns[fault["ctx"]["pattern"]]
    elif fault["type"] == "too_long":
        allowed = f"a list of {fault['ctx']['max_length']}"
    elif fault["type"] == "string_too_long":
        allowed = f"at most {fault['ctx']['max_length']} characters"
    else:
        allowed = fault["msg"].removeprefix("Input should be ").replace("a valid integer", "a whole number")
        allowed = allowed.replace("a valid ", "a ")
    return f"{path}: {value} is not allowed; allowed: {allowed}"


def _section(model: type[BaseModel], location: list[str]) -> type[BaseModel]:
    """The model of the section at a location (keys, from the top) in `model`."""
    for part in location:
        annotation = model.model_fields[part].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return model
