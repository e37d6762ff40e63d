"""The choices of each setting in the comments of params.yaml, which are those of pipeline/config/params.py."""

import re
from collections.abc import Mapping

from pipeline.config import params
from tests.conftest import PROJECT

SECTION = re.compile(r"(\w+):")
LINE = re.compile(r"(?P<start>  (?P<key>\w+):[^#]*# )[^(;]*?(?P<rest>(?: ?[(;].*)?)")  # the choices are what is between


def by_section() -> Mapping[str, Mapping[str, list[str]]]:
    """Section → key → its choices, for every setting that has some. Names after a slash are one choice."""
    schema = params.Params.model_json_schema()
    tables = {name: schema["$defs"][entry["$ref"].rpartition("/")[2]] for name, entry in schema["properties"].items()}
    return {
        name: {
            key: [*dict.fromkeys(re.sub("/.*", "/<name>", choice) for choice in setting["enum"])]
            for key, setting in table["properties"].items()
            if "enum" in setting
        }
        for name, table in tables.items()
    }


def params_file() -> str:
    """The text of params.yaml, with the choices in its comments. Raises ValueError if one has no line."""
    choices, section, lines, written = by_section(), "", [], set()
    for line in (PROJECT / params.FILE).read_text().splitlines():
        if heading := SECTION.match(line):
            section = heading[1]
        setting = LINE.fullmatch(line)
        if setting and setting["key"] in choices.get(section, {}):
            written.add((section, setting["key"]))
            lines.append(f"{setting['start']}{' | '.join(choices[section][setting['key']])}{setting['rest']}")
        else:
            lines.append(line)
    if lacking := {(section, key) for section, keys in choices.items() for key in keys} - written:
        raise ValueError(f"{params.FILE}: no comment with the choices of {sorted(lacking)}")
    return "\n".join([*lines, ""])
