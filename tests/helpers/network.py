"""Nodes on this machine, each with its own host name, network, processes and /etc/hosts, and a switch between them.

The switch is a thread of this process. It reads every Ethernet frame of a node and passes it to the others, so it can
hold frames back, lose some of them, or cut a cable. (`tc netem` does the same, but many kernels are built without it.)
Nothing of a node is left at its end, because the kernel kills what runs in a process namespace when its first process
ends.
"""

import fcntl
import os
import select
import shutil
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

NEEDED = ("ip", "unshare", "nsenter")
NAMESPACES = ("--net", "--uts", "--mount", "--pid")
TUN, TUNSETIFF, TAP_WITHOUT_HEADER = "/dev/net/tun", 0x400454CA, 0x1002  # linux/if_tun.h: IFF_TAP | IFF_NO_PI
BYTES_IN_A_FRAME = 9000  # "jumbo": fewer frames for the thread that passes them on


@dataclass(frozen=True)
class Node:
    """A node, with the start of every command that runs on it."""

    name: str
    enter: tuple[str, ...]

    def output(self, *command: str) -> str:
        """What a command says on this node, also if it fails."""
        done = subprocess.run([*self.enter, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: PLW1510
        return done.stdout

    def signal(self, name: str) -> None:
        """Send a signal to everything that runs on this node: KILL is a power cut, STOP and CONT are a frozen node."""
        self.output("sh", "-c", f"kill -{name} -1")


@dataclass
class Switch:
    """What happens to frames. The fields can be changed at any time; nodes are numbered from 0."""

    seconds: float = 0.0  # for which each frame is held back
    lost_of: int = 0  # one of so many frames is lost; 0: none
    cut: set[int] = field(default_factory=set)  # nodes whose cable is cut

    def carry(self, ports: list[int], is_closed: Callable[[], bool]) -> None:
        """Pass frames between the ports (file descriptors) until `is_closed`."""
        held, count = deque[tuple[float, int, bytes]](), 0
        while not is_closed():
            wait = max(0.0, held[0][0] - time.monotonic()) if held else 0.2
            for port in select.select(ports, [], [], wait)[0]:
                frame, count = os.read(port, 2**16), count + 1
                if not (self.lost_of and count % self.lost_of == 0):
                    held.append((time.monotonic() + self.seconds, ports.index(port), frame))
            while held and held[0][0] <= time.monotonic():
                _, source, frame = held.popleft()
                for number in {*range(len(ports))} - {source}:
                    if not self.cut & {number, source}:
                        with suppress(OSError):  # the interface is down
                            os.write(ports[number], frame)


def address(number: int) -> str:
    """The address of a node."""
    return f"10.99.0.{number + 1}"


@contextmanager
def _node(name: str, folder: Path) -> Iterator[Node]:
    """A node without a network. Everything on it is killed at the end of the block."""
    script = f"hostname {name} && mount --bind {folder}/hosts /etc/hosts && ip link set lo up && echo ready && "
    first = ["sh", "-c", f"{script} while :; do sleep 1; done"]  # it also reads the exit status of orphans
    with subprocess.Popen(
        ["unshare", *NAMESPACES, "--fork", "--kill-child=KILL", "--mount-proc", *first],
        stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        try:
            assert holder.stdout is not None
            if holder.stdout.readline() != "ready\n":
                pytest.skip("needs to make namespaces (unshare --net --uts --mount --pid)")
            inside = psutil.Process(holder.pid).children()[0].pid
            yield Node(name, ("nsenter", f"--target={inside}", *NAMESPACES))
        finally:
            holder.kill()


def _plug_in(node: Node, number: int) -> int:
    """Give the node its interface eth0. Returns the other end of its cable: a file descriptor of frames."""
    port, name = os.open(TUN, os.O_RDWR), f"tap{os.getpid()}n{number}"[:15]
    fcntl.ioctl(port, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP_WITHOUT_HEADER))
    peer = node.enter[1].removeprefix("--target=")  # a process id of this process's namespace, so no other is entered
    subprocess.run(["ip", "link", "set", name, "netns", peer, "name", "eth0"], check=True)
    settings = f"ip addr add {address(number)}/24 dev eth0 && ip link set eth0 mtu {BYTES_IN_A_FRAME} up"
    assert node.output("sh", "-c", settings) == ""
    return port


@contextmanager
def network(folder: Path, names: tuple[str, ...]) -> Iterator[tuple[list[Node], Switch]]:
    """Nodes of these names, which reach each other by name, and their switch. Skips the test where this cannot be."""
    if absent := [name for name in NEEDED if shutil.which(name) is None]:
        pytest.skip(f"needs iproute2 and util-linux: no {', '.join(absent)}")
    if os.geteuid() != 0 or not os.access(TUN, os.W_OK):
        pytest.skip(f"needs to be root, and {TUN}, to make networks")
    folder.mkdir(parents=True, exist_ok=True)
    hosts = "".join(f"{address(number)} {name}\n" for number, name in enumerate(names))
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
    closed, switch = threading.Event(), Switch()
    with ExitStack() as stack:
        nodes = [stack.enter_context(_node(name, folder)) for name in names]
        ports = []
        for number, node in enumerate(nodes):
            ports.append(_plug_in(node, number))
            stack.callback(os.close, ports[-1])
        thread = threading.Thread(target=switch.carry, args=(ports, closed.is_set), daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(closed.set)
        yield nodes, switch
