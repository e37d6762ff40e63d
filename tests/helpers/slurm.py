"""A Slurm cluster of two nodes on this machine, with a cable between them that can be cut.

Each node is a set of namespaces: its own host name, network, processes and /etc/hosts. Nothing of it is left, because
the kernel kills what runs in a process namespace when its first process ends.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

NEEDED = ("slurmctld", "slurmd", "srun", "sbatch", "salloc", "scontrol", "ip", "unshare", "nsenter")
CONFIGURATION = """
ClusterName=perennial
SlurmctldHost=sn1(10.99.0.1)
SlurmctldPort=6817
SlurmdPort=6818
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
KillWait=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdTimeout={silent_seconds}
AuthInfo=cred_expire=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=sn[1-2] NodeAddr=10.99.0.[1-2] CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL State=UP PriorityTier=2
"""
HOSTS = "127.0.0.1 localhost\n10.99.0.1 sn1\n10.99.0.2 sn2\n"


@dataclass(frozen=True)
class Node:
    """A node, with the start of every command that runs on it."""

    name: str
    enter: tuple[str, ...]

    def kill(self) -> None:
        """Kill everything that runs on this node, as a power cut would; the cable stays."""
        self.output("sh", "-c", "kill -KILL -1")

    def output(self, *command: str) -> str:
        """What a command says on this node, also if it fails."""
        done = subprocess.run([*self.enter, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: PLW1510
        return done.stdout


@contextmanager
def node(name: str, folder: Path) -> Iterator[Node]:
    """A node without a network. Everything on it is killed at the end of the block."""
    script = f"hostname {name} && mount --bind {folder}/hosts /etc/hosts && ip link set lo up && echo ready && "
    first = ["sh", "-c", f"{script} while :; do sleep 1; done"]  # it also reads the exit status of orphans
    kinds = ("--net", "--uts", "--mount", "--pid")
    with subprocess.Popen(
        ["unshare", *kinds, "--fork", "--kill-child=KILL", "--mount-proc", *first], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            if holder.stdout.readline() != "ready\n":
                pytest.skip("needs to make namespaces (unshare --net --uts --mount --pid)")
            inside = psutil.Process(holder.pid).children()[0].pid
            yield Node(name, ("nsenter", f"--target={inside}", *kinds))
        finally:
            holder.kill()


@contextmanager
def cluster(folder: Path, silent_seconds: int = 300) -> Iterator[tuple[Node, Node]]:
    """Two nodes with Slurm's daemons; the first has the controller too. Skips the test where this cannot be.

    Slurm gives up a node that does not answer for `silent_seconds` (300: Slurm's default), and ends its jobs.
    """
    if absent := [name for name in NEEDED if shutil.which(name) is None]:
        pytest.skip(f"needs Slurm and iproute2 (apt-get install slurm-wlm iproute2): no {', '.join(absent)}")
    if os.geteuid() != 0:
        pytest.skip("needs to be root, as Slurm's daemons are here")
    (folder / "state").mkdir(parents=True)
    (folder / "hosts").write_text(HOSTS)
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, silent_seconds=silent_seconds))
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")  # the test's environment is restored after it
    with ExitStack() as stack, node("sn1", folder) as one, node("sn2", folder) as two:
        peer = two.enter[1].removeprefix("--target=")  # a process id of this test's namespace, so no other is entered
        cable = ["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", peer]
        errors = Node("", (*one.enter[:2], "--net")).output(*cable)
        for place, name in enumerate((one, two), 1):
            errors += name.output("ip", "addr", "add", f"10.99.0.{place}/24", "dev", "eth0")
            errors += name.output("ip", "link", "set", "eth0", "up")
        assert errors == ""
        daemons = [(one, ["slurmctld", "-D"]), *((each, ["slurmd", "-D", "-N", each.name]) for each in (one, two))]
        for on, command in daemons:
            with (folder / f"{command[0]}-{on.name}.log").open("w") as log:
                daemon = subprocess.Popen([*on.enter, *command], stdout=log, stderr=log)
            stack.callback(daemon.wait)  # after its node
        while one.output("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T").split() != ["idle"] * 2:
            time.sleep(0.2)
        yield one, two
