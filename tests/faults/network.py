"""Trainings on nodes with a network of their own, which fails: the bytes stay the same, or a sentence names the node.

Nodes are namespaces of this machine, with a switch between them (tests/helpers/network.py); this needs root. Each has a
folder of its own. test_nodes.py runs the cases: `python -m pytest tests/test_nodes.py -k network_that_fails`.
"""

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.network import Node, Switch, address, network
from tests.helpers.nodes import TRAIN, TWO
from tests.helpers.trainings import launch, messages, outputs, small_world, wait_for

TIMEOUT = 10  # run.timeout_seconds
MOST_SECONDS = 3 * TIMEOUT + 30  # to a failure: launchers, processes and torch's agents have a timeout each
PORT = 29400
LINES: dict[str, Any] = {
    **TWO, "train__model": "squeezenet1_1", "train__epochs": 30, "train__batch_size": 12,
    "run__timeout_seconds": TIMEOUT,
}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """What a fault can change, and the launchers that it meets."""

    nodes: list[Node]
    switch: Switch
    launchers: list[subprocess.Popen[bytes]]

    def thaw(self, number: int) -> None:
        """Continue everything on a node. nsenter, which started the launcher, has stopped with it."""
        self.nodes[number].signal("CONT")
        self.launchers[number].send_signal(signal.SIGCONT)


Fault = Callable[[Scene], object]


def later(seconds: float, mend: Callable[[], object]) -> None:
    """Mend a fault after some seconds, unless this program has ended by then. The training goes on meanwhile."""
    timer = threading.Timer(seconds, mend)
    timer.daemon = True
    timer.start()


def cut(seconds: float) -> Fault:
    """The cable of node 1 is cut for some seconds."""

    def fault(scene: Scene) -> None:
        scene.switch.cut.add(1)
        later(seconds, scene.switch.cut.clear)

    return fault


def freeze(number: int, seconds: float) -> Fault:
    """Everything on a node stops for some seconds."""

    def fault(scene: Scene) -> None:
        scene.nodes[number].signal("STOP")
        later(seconds, lambda: scene.thaw(number))

    return fault


def kill(number: int) -> Fault:
    """A node loses its power."""
    return lambda scene: scene.nodes[number].signal("KILL")


def slow(seconds: float = 0.0, lost_of: int = 0) -> Fault:
    """Frames are held back, or some are lost."""

    def fault(scene: Scene) -> None:
        scene.switch.seconds, scene.switch.lost_of = seconds, lost_of

    return fault


def take_port(scene: Scene) -> None:
    """Another program listens at the rendezvous, and says nothing. It ends with the network."""
    listen = f"import os, socket, time; s = socket.create_server(('', {PORT}))"
    stay = "os.fork() or (os.closerange(0, 3), time.sleep(600))"  # closed, so that `output` does not wait for it
    assert scene.nodes[0].output(sys.executable, "-c", f"{listen}; {stay}") == ""


def other_interface_first(scene: Scene) -> None:
    """The host name of each node is the address of an interface that the other node does not reach."""
    for number, node in enumerate(scene.nodes):
        place, copy = f"172.31.{number}.1", f"/tmp/h-{node.name}"
        steps = (
            f"ip link add aa0 type veth peer name aa1 && ip addr add {place}/24 dev aa0 && ip link set aa0 up",
            "ip link set aa1 up",
            f"sed 's/^[0-9.]* {node.name}$/{place} {node.name}/' /etc/hosts > {copy}",
            f"mount --bind {copy} /etc/hosts && rm {copy} && getent hosts {node.name} | grep -q {place}",
        )
        assert node.output("sh", "-c", f"{' && '.join(steps)} || echo failed") == ""


@dataclass(frozen=True)
class Case:
    """A fault, when it happens, and what is expected."""

    name: str
    fault: Fault = lambda scene: None
    sentence: str = "train: done"  # a pattern of a line that one node says
    fails: bool = False  # the training ends with a failure, and is started a second time
    at_start: bool = False  # before the training
    nodes: int = 2
    lines: dict[str, Any] = field(default_factory=dict)


SPAWN = {"run__launcher": "spawn"}
RESTARTS = {"run__max_restarts": 2}
ON_0, ON_1, MEETING = r"process \d of \d .*on n0 ", r"process \d of \d .*on n1 ", r"run\.rendezvous: .* meet "
CASES = (
    Case("two nodes"),
    Case("three nodes", nodes=3),
    Case("cable cut for 3 s", cut(3)),
    Case("cable cut for 40 s", cut(40), ON_1, True),
    Case("cable cut for 40 s, spawn", cut(40), ON_1, True, lines=SPAWN),
    Case("cable cut for 12 s, with restarts", cut(12), "launch: restart 1 of 2", lines=RESTARTS),
    Case("node 1 frozen for 3 s", freeze(1, 3)),
    Case("node 1 frozen for 40 s", freeze(1, 40), ON_1, True),
    Case("node 1 killed", kill(1), ON_1, True),
    Case("node 0 killed", kill(0), ON_0, True),
    Case("node 1 killed, spawn", kill(1), ON_1, True, lines=SPAWN),
    Case("200 ms of delay", slow(0.2), at_start=True, lines={"train__epochs": 6}),
    Case("5 % of the frames lost", slow(lost_of=20), at_start=True),
    Case("another interface first", other_interface_first, at_start=True),
    Case("port taken", take_port, MEETING, True, at_start=True),
    Case("nothing passes", cut(1000), MEETING, True, at_start=True),
)  # fmt: skip


def run_all(scene: Scene, folders: list[Path], case: Case) -> tuple[list[int], float]:
    """Start the training on all nodes. Its messages go to files (`messages`).

    Returns the exit status of each node's launcher, and the seconds from the fault to the end of the last one.
    """
    began = time.monotonic()
    if case.at_start:
        case.fault(scene)
    for node, folder in zip(scene.nodes, folders, strict=True):
        with (folder / "said").open("w") as file:
            command = [*node.enter, "env", f"--chdir={folder}", *TRAIN]
            scene.launchers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file))
    if not case.at_start:
        wait_for(lambda: "epoch 2/" in messages(folders[0]), "no epoch")
        began = time.monotonic()
        case.fault(scene)
    return [process.wait() for process in scene.launchers], time.monotonic() - began


def check(case: Case, base: Path) -> None:
    """Run a case in an empty folder: its sentence, its end in time, and node 0 has the bytes of one node.

    After a failure the network is mended, and the same command is started again on all nodes.
    """
    names = tuple(f"n{number}" for number in range(case.nodes))
    lines = {**LINES, **case.lines, "run__processes": case.nodes}
    reference = small_world(base / "reference", **lines)
    launch(reference)
    meeting = {"run__nodes": case.nodes, "run__rendezvous": f"{address(0)}:{PORT}"}
    folders = [small_world(base / name, **{**lines, **meeting}, run__node_rank=rank) for rank, name in enumerate(names)]
    with network(base / "network", names) as (nodes, switch):
        ended, seconds = run_all(Scene(nodes, switch, []), folders, case)
    words = "".join(map(messages, folders))
    assert re.search(case.sentence, words), words
    assert any(ended) == case.fails, words
    if case.fails:
        assert seconds < MOST_SECONDS
        with network(base / "network", names) as (nodes, switch):
            ended, _ = run_all(Scene(nodes, switch, []), folders, Case("the same again", at_start=True))
        assert not any(ended), "".join(map(messages, folders))
    assert outputs(folders[0]) == outputs(reference)
