"""A Slurm cluster of two nodes on this machine (network.py)."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.helpers.network import Node, network

NEEDED = ("slurmctld", "slurmd", "srun", "sbatch", "salloc", "scontrol")
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


@contextmanager
def cluster(folder: Path, silent_seconds: int = 300) -> Iterator[tuple[Node, Node]]:
    """Two nodes with Slurm's daemons; the first has the controller too. Skips the test where this cannot be.

    Slurm gives up a node that does not answer for `silent_seconds` (300: Slurm's default), and ends its jobs.
    """
    if absent := [name for name in NEEDED if shutil.which(name) is None]:
        pytest.skip(f"needs Slurm (apt-get install slurm-wlm): no {', '.join(absent)}")
    if os.geteuid() != 0:
        pytest.skip("needs to be root, as Slurm's daemons are here")
    (folder / "state").mkdir(parents=True)
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, silent_seconds=silent_seconds))
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")  # the test's environment is restored after it
    with ExitStack() as stack, network(folder, ("sn1", "sn2")) as ((one, two), _):
        daemons = [(one, ["slurmctld", "-D"]), *((each, ["slurmd", "-D", "-N", each.name]) for each in (one, two))]
        for on, command in daemons:
            with (folder / f"{command[0]}-{on.name}.log").open("w") as log:
                daemon = subprocess.Popen([*on.enter, *command], stdout=log, stderr=log)
            stack.callback(daemon.wait)  # after its node
        while one.output("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T").split() != ["idle"] * 2:
            time.sleep(0.2)
        yield one, two
