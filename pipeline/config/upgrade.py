"""Settings that a params file does not have: their default values, and their lines.

`defaults.yaml` beside this file is the params.yaml that comes with the project, with every setting and its comment. A
params file of an earlier version has fewer settings. The missing ones take their default values.
"""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.config import document

DEFAULTS = Path(__file__).with_name("defaults.yaml")


def completed(raw: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The table `raw`, and below it the keys of `defaults` that it lacks, in tables within tables too.

    A key that `defaults` does not know stays. So does a value where `defaults` has a table. A table without a line in
    it, which YAML reads as null, is an empty table.
    """
    return defaults | {
        key: completed(value or {}, defaults[key]) if _are_tables(value, defaults.get(key)) else value
        for key, value in raw.items()
    }


def _are_tables(value: Any, default: Any) -> bool:
    return isinstance(default, dict) and (value is None or isinstance(value, dict))


def missing(raw: dict[str, Any], defaults: dict[str, Any], prefix: str = "") -> list[str]:
    """The settings of `defaults` that `raw` lacks, as `section.key`, in the order of `defaults`."""
    names = []
    for key, value in defaults.items():
        if key not in raw:
            names.append(f"{prefix}{key}")
        elif _are_tables(raw[key], value):
            names += missing(raw[key] or {}, value, f"{prefix}{key}.")
    return names


def with_missing_lines(text: str) -> str:
    """The text of a params file, with the lines of defaults.yaml for every setting that it lacks.

    A line comes after the setting that is before it in defaults.yaml. Other lines stay as they are.
    Raises UserError if there is no place for a line, because a table is written in braces.
    """
    template, defaults = DEFAULTS.read_text(encoding="utf-8"), document.read(DEFAULTS)
    raw = YAML(typ="safe", pure=True).load(text)
    wanted = completed(raw, defaults)
    lacking = missing(raw, defaults)
    try:
        for name in lacking:
            text = _with_block(text, name.split("."), _block(template, name.split(".")), defaults)
        if YAML(typ="safe", pure=True).load(text) == wanted:
            return text
    except YAMLError:
        pass
    raise UserError(
        f"params.yaml: {', '.join(lacking)} cannot be added here; allowed: tables with one setting per line; "
        f"copy these lines from pipeline/config/{DEFAULTS.name} by hand"
    )


def _block(text: str, where: list[str]) -> list[str]:
    """The lines of a setting, and those of the table below it."""
    lines = text.splitlines(keepends=True)
    table = YAML().load(text)
    for key in where[:-1]:
        table = table[key]
    first, column = table.lc.key(where[-1])
    return lines[first : _end(lines, first, column)]


def _end(lines: list[str], first: int, column: int) -> int:
    """The number of the line after a setting that begins in the line `first`, and after the table below it."""
    last = first + 1
    while last < len(lines) and lines[last].startswith((f"{' ' * column} ", f"{' ' * column}- ")):
        last += 1  # DVC writes the items of a list below the first letter of their key
    return last


def _with_block(text: str, where: list[str], block: list[str], defaults: dict[str, Any]) -> str:
    """The text with `block` after the setting that is before it in `defaults`; at the end, if there is none."""
    lines = [line if line.endswith("\n") else f"{line}\n" for line in text.splitlines(keepends=True)]
    table, section = YAML().load(text), defaults
    header = len(lines)
    for key in where[:-1]:
        header, section = table.lc.key(key)[0] + 1, section[key]
        table = table[key] or {}
    earlier = [key for key in list(section)[: list(section).index(where[-1])] if key in table]
    at = _end(lines, *table.lc.key(earlier[-1])) if earlier else header
    if len(where) == 1:  # a section: an empty line is before it
        block = ["\n", *block]
    return "".join([*lines[:at], *block, *lines[at:]])


def upgrade(path: Path) -> str:
    """Write the missing settings into a params file. Returns what was done, for the user."""
    raw, defaults = document.read(path), document.read(DEFAULTS)
    lacking = missing(raw, defaults) if isinstance(raw, dict) else []
    if not lacking:
        return f"{path}: every setting is there"
    files.write_text(path, with_missing_lines(path.read_text(encoding="utf-8")))
    return f"{path}: added with the default values: {', '.join(lacking)}"
