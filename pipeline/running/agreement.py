"""Before the first exchange, all processes compare the facts that decide the bytes, or that hang a run if they differ.

They use the store of the rendezvous. It works without the same device and the same versions of libraries.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pipeline.base.errors import Fault, UserError, describe_system_error, raise_if_any
from pipeline.learning.world import World
from pipeline.running import rendezvous
from pipeline.running.rendezvous import Store

Facts = dict[str, dict[str, Any]]  # remedy → name of a fact → its value, of JSON types
NOT_SET = "not set"


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The names whose values differ, with our value and theirs as text."""
    names = dict.fromkeys([*ours, *theirs])
    return [(name, as_text(ours, name), as_text(theirs, name)) for name in names if ours.get(name) != theirs.get(name)]


def as_text(facts: Mapping[str, Any], name: str) -> str:
    """A value as the text for a message."""
    return repr(facts[name]) if name in facts else NOT_SET


@contextmanager
def compare_facts(store: Store, world: World) -> Iterator[Facts]:
    """In the block, a process fills in its Facts. At the end of the block, all processes compare them.

    Raises UserError in every process: for an error in the block of one of them, or with the names that differ. So no
    process waits for one that cannot start.
    """
    facts: Facts = {}

    def exchange(fault: str) -> list[dict[str, Any]]:
        """The messages of all processes, by rank."""
        text = json.dumps({"host": os.uname().nodename, "fault": fault, "facts": facts})
        return [json.loads(message) for message in rendezvous.gather_messages(store, world, "agreement", text)]

    try:
        yield facts
    except Exception as error:  # not for an interrupt: an interrupted process waits for no other
        exchange(describe_system_error(error) or str(error))
        raise
    messages = exchange("")
    for rank, message in enumerate(messages):
        if message["fault"]:
            process = f"process {rank} of {world.size} (on {message['host']})"
            value, remedy = "cannot begin, so none does", "then start all again"
            raise UserError(Fault(process, value, "failed", message["fault"], remedy=remedy))
    for rank, message in enumerate(messages):
        raise_if_any(_faults_from_process_0(messages[0], rank, message, world.size))


def _faults_from_process_0(first: dict[str, Any], rank: int, other: dict[str, Any], size: int) -> list[Fault]:
    """The differences between a process and process 0, one for each fact."""
    where, process_0 = f"in process {rank} of {size} (on {other['host']})", f"process 0 (on {first['host']})"
    return [
        Fault(name, f"{theirs} {where}", "differs", f"{process_0} has {ours}", remedy=remedy)
        for remedy in dict.fromkeys([*first["facts"], *other["facts"]])
        for name, ours, theirs in differences(first["facts"].get(remedy, {}), other["facts"].get(remedy, {}))
    ]
