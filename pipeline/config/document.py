"""Reads and writes YAML documents, and describes their faults. This module knows no setting.

YAML is read with ruamel, as DVC reads it (`lr: 1e-4` is a number). Values are never converted: `"3"` is not 3.
"""

import difflib
import io
import json
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML

from pipeline.base import files, schema
from pipeline.base.errors import Fault, UserError, without_secrets
from pipeline.base.text import did_you_mean, in_words, visible

MAX_LENGTH = 200  # characters of a value in a message


class _Repr(reprlib.Repr):
    """Python's form of a value, with few items. Python refuses to write the digits of a very long number."""

    maxdict = maxlist = maxset = maxtuple = 3

    def repr_int(self, x: int, level: int) -> str:
        return f"a number of {x.bit_length():,} bits" if abs(x) >= 2**63 else super().repr_int(x, level)


REPR = _Repr()


def read(path: Path) -> Any:
    """The content of a YAML file. Raises UserError if it cannot be read, or is not YAML."""
    remedy = f"run from the project's folder, or restore the file (git checkout {path.name})"
    # For a value that does not exist, such as May 99, the parser raises any exception.
    with schema.reading(path, remedy, Exception):
        content = YAML(typ="safe", pure=True).load(path.read_bytes())
        with_tuples(content)  # raises RecursionError for an alias of a table that it is in
        return content


def value_of(key: str, text: str) -> Any:
    """The value of a key that a person has typed as it stands in a YAML file. Raises UserError if it is no YAML."""
    try:
        return YAML(typ="safe", pure=True).load(text)
    except Exception:  # as in `read`
        raise UserError(Fault(key, text, "value", "it is no YAML", "a value as in params.yaml")) from None


def updated_text(text: str, values: Mapping[str, Any]) -> str:
    """A YAML document with other values (dotted key → value), in the form that DVC writes. Comments stay.

    The line of a key that already has its value does not change.
    """
    yaml = YAML()
    yaml.default_flow_style = False
    document = yaml.load(text)
    for dotted, value in values.items():
        table, key = table_of(document, dotted)
        if key in table and table[key] == value:
            continue
        if isinstance(value, list) and isinstance(table.get(key), list):
            table[key][:] = value  # in place, so that [1, 2] stays in one line
        else:
            table[key] = value
    stream = io.StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def table_of(document: Any, dotted: str) -> tuple[Any, str]:
    """The table in nested tables that has, or is to have, the value of a dotted key; and its key there."""
    *sections, key = dotted.split(".")
    for section in sections:
        if not isinstance(document.get(section), dict):  # a table without a line in it is null
            document[section] = {}
        document = document[section]
    return document, key


def rewrite(path: Path, values: Mapping[str, Any]) -> None:
    """Write other values (dotted key → value) into a YAML file, as `updated_text` says."""
    files.write_text(path, updated_text(path.read_text(encoding="utf-8"), values))


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in nested tables that is no table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def with_defaults(raw: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The table `raw`, and below it the keys of `defaults` that it lacks, in tables within tables too.

    A key that is not in `defaults` stays. So does a value where `defaults` has a table. A table without a line in it,
    which YAML reads as null, is an empty table.
    """
    result = dict(defaults)
    for key, value in raw.items():
        are_tables = isinstance(defaults.get(key), dict) and (value is None or isinstance(value, dict))
        result[key] = with_defaults(value or {}, defaults[key]) if are_tables else value
    return result


def value_text(value: Any) -> str:
    """A value as params.yaml has it, in one line."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def short_text(value: Any, text: Callable[[Any], str] = repr) -> str:
    """A value as text for one line of a message: as YAML has it, printable, and cut if it is long."""
    if value is None or isinstance(value, bool):
        return value_text(value)
    if isinstance(value, tuple):
        value = list(value)
    result = text(value) if isinstance(value, str | float) else REPR.repr(value)
    result = visible(" ".join(without_secrets(result).split()))
    return result if len(result) <= MAX_LENGTH else f"{result[:MAX_LENGTH]}… ({len(result):,} characters)"


def with_tuples(value: Any) -> Any:
    """The value with a tuple for each list: typed params are frozen, and strict types take no list for a tuple."""
    if isinstance(value, dict):
        return {key: with_tuples(inner) for key, inner in value.items()}
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value


def fault(error: ErrorDetails, model: type[BaseModel], patterns: Mapping[str, str]) -> Fault:
    """The fault for an error of pydantic, with the allowed values.

    `model` describes the whole document. `patterns` has a description of each regular expression in it.
    """
    location = [str(part) for part in error["loc"]]
    value = short_text(error["input"])
    path = ".".join(short_text(part, str) or "''" for part in location) or value  # no location: a key of the document
    context = error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden" | "invalid_key":
            allowed = in_words([*_section(model, location[:-1]).model_fields])
            return Fault(path, value, "unknown", "unknown key", allowed, did_you_mean(nearest(location, model)))
        case "missing":
            return Fault(path, "missing", "missing", remedy="add it")
        case "literal_error":
            allowed = context["expected"].replace("'", "").replace(" or ", ", ")
            near = difflib.get_close_matches(str(error["input"]), allowed.split(", "), n=1)
            return Fault(path, value, "value", "", allowed, did_you_mean(near))
        case "string_pattern_mismatch":
            allowed = patterns[context["pattern"]]
        case "model_type" | "dict_type":
            allowed = "a table"
        case "tuple_type":
            allowed = "a list"
        case "too_long":
            allowed = f"a list of {context['max_length']}"
        case "string_too_long":
            allowed = f"at most {context['max_length']} characters"
        case _:
            allowed = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
            allowed = allowed.replace("a valid integer", "a whole number")
            allowed = allowed.replace("a valid boolean", "true, false").replace("a valid ", "a ")
    return Fault(path, value, "value", allowed=allowed)


def nearest(location: Sequence[str], model: type[BaseModel]) -> list[str]:
    """The dotted keys in `model` that an unknown key at `location` may mean; empty if none is near.

    First those of the same name in another section, or of its initials (learning_rate, lr). Then those of a similar
    name in its own section. Then those of a similar name anywhere.
    """
    *section, key = location
    name, keys = key.rpartition(".")[2], list(_dotted_keys(model))
    own = [key for key in keys if key.split(".")[:-1] == section]
    if same := [key for key in keys if _is_same(name, key.rpartition(".")[2])]:
        return [key for key in same if key in own] or same
    for group in (own, keys):
        names = [key.rpartition(".")[2] for key in group]
        if close := difflib.get_close_matches(name, names, n=1):
            return [key for key in group if key.rpartition(".")[2] == close[0]]
    return []


def _is_same(name: str, other: str) -> bool:
    """Whether two names of settings are equal, or one has the initials of the other."""
    return name == _initials(other) or other in (name, _initials(name))


def _initials(name: str) -> str:
    """The first letters of the words of a name; a single word as it is."""
    words = name.split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else name


def _dotted_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted key of every section and every setting of a model."""
    for name, entry in model.model_fields.items():
        yield f"{prefix}{name}"
        if isinstance(entry.annotation, type) and issubclass(entry.annotation, BaseModel):
            yield from _dotted_keys(entry.annotation, f"{prefix}{name}.")


def _section(model: type[BaseModel], location: list[str]) -> type[BaseModel]:
    """The model of the section at a location (keys, from the top) in `model`."""
    for part in location:
        annotation = model.model_fields[part].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return model
