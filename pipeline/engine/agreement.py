"""Before the first exchange, all processes compare what decides the bytes, or hangs the run if it differs.

They do so through the store in which they meet: it needs neither the same device nor the same version of a library.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pipeline.base.errors import UserError, describe_system_error
from pipeline.engine import rendezvous
from pipeline.engine.rendezvous import Store
from pipeline.engine.world import World

Facts = dict[str, dict[str, Any]]  # name -> value (of JSON), by what is to be done where they differ
NOT_SET = "not set"
MOST = 10  # differences that are named; the rest is counted


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The names that differ, with our value and theirs, as they are shown."""
    names = dict.fromkeys([*ours, *theirs])
    return [(name, shown(ours, name), shown(theirs, name)) for name in names if ours.get(name) != theirs.get(name)]


def shown(facts: Mapping[str, Any], name: str) -> str:
    """A value as it is written in a message."""
    return repr(facts[name]) if name in facts else NOT_SET


@contextmanager
def agreed(store: Store, world: World) -> Iterator[Facts]:
    """In the block a process finds out what it has, and writes that into the Facts; at its end, all compare.

    Raises UserError in every process: for what was raised in the block of one of them, or with the names that differ.
    So no process waits for one that cannot begin.
    """
    facts: Facts = {}

    def tell(fault: str) -> list[dict[str, Any]]:
        mine = {"host": os.uname().nodename, "fault": fault, "facts": facts}
        return [json.loads(text) for text in rendezvous.gather_messages(store, world, "agreement", json.dumps(mine))]

    try:
        yield facts
    except Exception as error:  # an interrupt is none: who is interrupted waits for nobody
        tell(describe_system_error(error) or str(error))
        raise
    said = tell("")
    for rank, other in enumerate(said):
        if other["fault"]:
            where = f"process {rank} of {world.size} (on {other['host']})"
            raise UserError(f"{where} cannot begin, and so none does: {other['fault']}")
    for rank, other in enumerate(said):
        if lines := _against(said[0], rank, other, world.size):
            rest = [f"and {len(lines) - MOST} more"] if len(lines) > MOST else []
            raise UserError("\n".join(lines[:MOST] + rest))


def _against(first: dict[str, Any], rank: int, other: dict[str, Any], size: int) -> list[str]:
    """What of a process differs from process 0, a line each."""
    return [
        f"{name}: process {rank} of {size} (on {other['host']}) has {theirs}, process 0 (on {first['host']}) has "
        f"{ours}; {remedy}"
        for remedy in dict.fromkeys([*first["facts"], *other["facts"]])
        for name, ours, theirs in differences(first["facts"].get(remedy, {}), other["facts"].get(remedy, {}))
    ]
