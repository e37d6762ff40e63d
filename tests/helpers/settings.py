"""The settings of params.yaml, and which of them a stage tracks."""

from collections.abc import Iterator
from functools import cache

from pydantic import BaseModel

from benchmarks.harness.workspace import STAGE_TABLES
from pipeline.config import params


def leaves(section: type[BaseModel] = params.Params, prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


LEAVES = list(leaves())


@cache
def keys(stage: str) -> frozenset[str]:
    """The settings and tables of settings that dvc.yaml names for a stage."""
    entries = [entry if isinstance(entry, dict) else {"": [entry]} for entry in STAGE_TABLES[stage]["params"]]
    return frozenset(key for entry in entries for listed in entry.values() for key in listed)


@cache
def tracked(stage: str) -> frozenset[str]:
    """The settings for which DVC runs the stage again when they change."""
    return frozenset(leaf for leaf in LEAVES if any(leaf == key or leaf.startswith(f"{key}.") for key in keys(stage)))
