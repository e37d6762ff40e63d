"""Trainings on nodes with a network of their own, which fails: the bytes stay the same, or a sentence names the node.

    python -m tests.faults.network --out benchmarks/results/network.json

Nodes are namespaces of this machine, with a switch between them (tests/helpers/network.py); this needs root. Each has a
folder of its own. A case starts `perennial train` on all nodes (a small SqueezeNet, ddp over gloo), waits for the
second epoch, and does something to the network or to a node. If the training ends with a failure, the network is
mended, and the same command is started again on all nodes. It counts

    ended       the exit status of each node's launcher, before a second start
    seconds     from the fault (or the start) to the end of the last launcher; allowed after a failure: three times
                run.timeout_seconds and 30, because launchers, processes and torch's agents have a timeout each
    expected    whether the training ended as the case expects, and the output of a node has its sentence
    same        the outputs of node 0 are those of one node with as many processes, byte for byte, in the end

The exit status is 1 if a case breaks its promise.
"""

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.measuring import machine
from benchmarks.harness.workspace import temporary_folder
from tests.faults import campaign
from tests.faults.campaign import Row
from tests.helpers.network import Node, Switch, address, network
from tests.helpers.nodes import TRAIN, TWO
from tests.helpers.trainings import launch, messages, outputs, small_world, wait_for

TIMEOUT = 10  # run.timeout_seconds
MOST_SECONDS = 3 * TIMEOUT + 30
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
    """Another program listens at the rendezvous, and says nothing."""
    script = f"import socket, time; s = socket.create_server(('', {PORT})); print(1, flush=True); time.sleep(600)"
    listener = subprocess.Popen([*scene.nodes[0].enter, sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert listener.stdout is not None
    listener.stdout.readline()


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


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case."""

    name: str
    ended: list[int]
    seconds: float
    expected: bool
    same: bool
    sentence: str  # the first line that matches; empty if none does

    @property
    def is_broken(self) -> bool:
        """Whether the case broke its promise."""
        return not (self.expected and self.same) or (any(self.ended) and self.seconds > MOST_SECONDS)


def begin(scene: Scene, folders: list[Path]) -> None:
    """Start the training on all nodes. Its messages go to files (`messages`)."""
    for node, folder in zip(scene.nodes, folders, strict=True):
        with (folder / "said").open("w") as file:
            command = [*node.enter, "env", f"--chdir={folder}", *TRAIN]
            scene.launchers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file))


def run_case(case: Case, base: Path) -> Outcome:
    """Run a case in an empty folder."""
    names = tuple(f"n{number}" for number in range(case.nodes))
    lines = {**LINES, **case.lines, "run__processes": case.nodes}
    reference = small_world(base / "reference", **lines)
    launch(reference)
    meeting = {"run__nodes": case.nodes, "run__rendezvous": f"{address(0)}:{PORT}"}
    folders = [small_world(base / name, **{**lines, **meeting}, run__node_rank=rank) for rank, name in enumerate(names)]
    with network(base / "network", names) as (nodes, switch):
        scene = Scene(nodes, switch, [])
        if case.at_start:
            began = time.monotonic()
            case.fault(scene)
            begin(scene, folders)
        else:
            begin(scene, folders)
            wait_for(lambda: "epoch 2/" in messages(folders[0]), "no epoch")
            began = time.monotonic()
            case.fault(scene)
        ended = [process.wait() for process in scene.launchers]
        seconds = time.monotonic() - began
        said = [messages(folder) for folder in folders]
    if any(ended):
        with network(base / "network", names) as (nodes, switch):
            begin(again := Scene(nodes, switch, []), folders)
            statuses = [process.wait() for process in again.launchers]
            if any(statuses):
                said += [messages(folder) for folder in folders]
    same = False
    with suppress(AssertionError):
        same = outputs(folders[0]) == outputs(reference)
    line = re.search(f"(?m)^.*{case.sentence}.*$", "".join(said))
    expected = line is not None and any(ended) == case.fails
    return Outcome(case.name, ended, round(seconds, 1), expected, same, line[0] if line else "")


def summary(done: list[Row]) -> dict[str, Any]:
    """The figures of a campaign."""
    return {
        "cases": len(done),
        "unexpected": sum(not row["expected"] for row in done),
        "differing": sum(not row["same"] for row in done),
        "most_seconds_to_a_failure": max((row["seconds"] for row in done if any(row["ended"])), default=0),
    }


def main() -> int:
    parser = campaign.parser("network", __doc__)
    parser.add_argument("--case", action="append", help="only the case of this name; can be repeated")
    options = parser.parse_args()
    outcomes: list[Outcome] = []

    def rows() -> Iterator[Row]:
        for number, case in enumerate(case for case in CASES if not options.case or case.name in options.case):
            with temporary_folder(f"network-{number}") as base:
                outcomes.append(run_case(case, base))
            yield asdict(outcomes[-1])

    conditions = {"timeout_seconds": TIMEOUT, "machine": machine()}
    campaign.run(rows(), options.out, lambda done: {**conditions, "summary": summary(done), "cases": done})
    return int(any(outcome.is_broken for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
