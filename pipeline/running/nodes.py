"""How the launchers of several nodes meet at run.rendezvous, one launcher per node."""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch.distributed import DistError, TCPStore

from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Run
from pipeline.running.rendezvous import first_line
from pipeline.running.watchdog import Watch


def rendezvous_fault(run: Run, reason: str) -> Fault:
    """The refusal of nodes that do not meet."""
    remedy = (
        "start node 0; let nothing else listen on this port; give every node the same params, but its run.node_rank"
    )
    return Fault("run.rendezvous", run.rendezvous, "failed", reason, remedy=remedy)


@contextmanager
def limit_wait(watch: Watch, run: Run) -> Iterator[None]:
    """Print that this node waits for the other nodes. End this launcher if they do not meet in time.

    torch waits for ever, and prints nothing, if another program listens at run.rendezvous.
    """
    if run.nodes == 1:
        yield
        return
    # With run.min_processes torchrun first waits for enough nodes, and then as long for all of them.
    seconds = run.timeout_seconds * (2 if run.min_processes else 1)
    where = f"at {run.rendezvous} (run.rendezvous), {seconds} s at most"
    print(f"launch: node {run.node_rank} of {run.nodes} waits for the others {where}", file=sys.stderr)

    def give_up() -> None:
        if watch.has_processes():
            return
        fault = rendezvous_fault(run, f"the nodes did not meet there within {seconds} s (run.timeout_seconds)")
        print(f"launch: {fault}", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds + 5, give_up)  # torch gives up after `seconds`, if at all
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def torchrun_settings(run: Run) -> dict[str, Any]:
    """How torchrun's agents meet, one per node. The first node has rank 0, which reads and writes the files."""
    if run.nodes == 1:
        # Without this, processes look for this machine by its host name. A container without a network has none.
        return {"rdzv_backend": "c10d", "local_addr": "localhost"}
    if run.min_processes == 0:  # ranks follow run.node_rank, so a node has the same ranks in every start
        return {"rdzv_backend": "static", "rdzv_configs": {"rank": run.node_rank, "timeout": run.timeout_seconds}}
    # The agents are ranked by their addresses, as text. Only the first address is used as one. "~" sorts last.
    host = run.rendezvous.rpartition(":")[0]
    return {
        "rdzv_backend": "c10d",
        "rdzv_configs": {
            "is_host": run.node_rank == 0,
            "join_timeout": 2 * run.timeout_seconds,
            "last_call_timeout": run.timeout_seconds,  # how long min_nodes nodes wait for the rest
        },
        "local_addr": host if run.node_rank == 0 else f"~{run.node_rank}",
    }


@contextmanager
def shared_store(watch: Watch, run: Run) -> Iterator[dict[str, str]]:
    """In the block there is a store for all processes, and all nodes have met there. Yields its variables.

    It is in the launcher of the first node. Raises UserError if the nodes cannot meet.
    """
    if run.nodes == 1:  # on a port that the system chose, so two runs at a time do not collide
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    else:
        with limit_wait(watch, run):
            store = _meet(run)
    variables = {"MASTER_ADDR": store.host, "MASTER_PORT": str(store.port)}
    try:
        yield {**variables, "TORCHELASTIC_USE_AGENT_STORE": "True"}  # the store exists; no process has to open one
    finally:
        del store  # a restart needs its port


def _meet(run: Run) -> TCPStore:
    """The store of the first node, after all nodes have connected to it."""
    host, _, port = run.rendezvous.rpartition(":")
    names = [f"node {rank}" for rank in range(run.nodes)]
    try:
        if run.node_rank == 0:
            store = TCPStore(host, int(port), is_master=True, wait_for_workers=False)
            store.set(names[0], "")
        else:
            store = _store_of_first_node(host, int(port), names[run.node_rank])
        while not store.check(names):
            time.sleep(0.1)
    except DistError as error:
        raise UserError(rendezvous_fault(run, f"the nodes cannot meet there: {first_line(error)}")) from None
    return store


def _store_of_first_node(host: str, port: int, name: str) -> TCPStore:
    """The store of the first node, when it is there. This node's name is in it.

    A store that has the name already is that of an earlier start, which has not ended yet on the first node.
    """
    while True:
        with suppress(OSError, DistError):
            socket.create_connection((host, port), 1).close()  # torch would wait here without handling signals
            store = TCPStore(host, port, is_master=False)
            if store.add(name, 1) == 1:
                return store
        time.sleep(0.1)
