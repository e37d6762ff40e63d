"""The rank of a process, the rendezvous of all processes of a run, and their messages before they exchange tensors."""

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Literal

import psutil
import torch
import torch.distributed as dist

from pipeline.base.errors import Fault, UserError, one_line, raise_if_any
from pipeline.config.params import HOST_PORT, PATTERNS, Run
from pipeline.learning.world import World

Store = dist.Store
INTERFACE = "GLOO_SOCKET_IFNAME"  # the variable in which gloo reads the network interface
DeviceKind = Literal["cuda", "cpu"]

# The variables with a process's rank, local rank and world size. torchrun comes first: it may run inside a Slurm job.
# SLURM_STEP_NUM_TASKS is set only in processes that srun started.
LAUNCHER_VARIABLES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
)
MOST = 10_000  # processes of a run
START = "perennial train (or features, evaluate) starts its processes"


def world_of(environ: Mapping[str, str], device: DeviceKind) -> World:
    """The world that torchrun, `spawn` or srun describes in the environment; a single process without a launcher.

    `spawn` sets the same variables as torchrun. Raises UserError for values that no launcher sets.
    """
    names = _variables(environ)
    rank, local_rank, size = (_number(environ[name]) for name in names) if names else (0, 0, 1)
    last = max(size, 1) - 1
    limits = zip(names, (rank, local_rank, size), ((0, last), (0, last), (1, MOST)), strict=False)
    raise_if_any(
        Fault(name, repr(environ[name]), "value", allowed=f"{least} to {most}", remedy=START)
        for name, value, (least, most) in limits
        if not least <= value <= most
    )
    return World(rank, local_rank, size, torch.device("cuda", local_rank) if device == "cuda" else torch.device("cpu"))


def check_size(world: World, run: Run) -> None:
    """Raise UserError if the launcher has started another number of processes than run.processes says.

    They would train another model than the one of dvc.lock. With run.min_processes fewer are allowed.
    """
    if not (run.min_processes or run.processes) <= world.size <= run.processes:
        reason = f"the launcher has started {world.size}"
        raise UserError(Fault("run.processes", str(run.processes), "differs", reason, remedy=START))


def _number(text: str) -> int:
    """A whole number of at most nine digits; -1 for any other text."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else -1


def has_launcher(environ: Mapping[str, str]) -> bool:
    """Whether a launcher started this process."""
    return bool(_variables(environ))


def _variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the launcher's variables that are set; empty without a launcher."""
    return next((names for names in LAUNCHER_VARIABLES if all(name in environ for name in names)), ())


def address(environ: Mapping[str, str]) -> tuple[str, str]:
    """The host of rank 0, and the URL that torch calls the init method.

    torchrun and `spawn` set them. Under Slurm they follow from the job. Raises UserError for values of no launcher.
    """
    if "MASTER_ADDR" in environ:
        place = f"{environ['MASTER_ADDR']}:{environ.get('MASTER_PORT', '')}"
        if not re.fullmatch(HOST_PORT, place):
            raise UserError(Fault("MASTER_ADDR, MASTER_PORT", place, "value", allowed=PATTERNS[HOST_PORT]))
        return environ["MASTER_ADDR"], "env://"
    try:
        host = first_host(environ["SLURM_STEP_NODELIST"])
        job, step = int(environ["SLURM_JOB_ID"]), int(environ["SLURM_STEP_ID"])
    except (KeyError, ValueError) as error:
        names = "SLURM_STEP_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID"
        raise UserError(Fault(names, "not those of srun", "value", one_line(error), remedy=START)) from None
    # One port for every step of every job, below the ports that the system assigns.
    return host, f"tcp://{host}:{15000 + (job * 31 + step) % 15000}"


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list such as `a,b`, `gpu[07-09,12],cpu1` or `rack[1-2]n[3-4]`.

    Raises ValueError for any other text. [Slurm, hostlist expressions]
    """
    first = re.match(r"(?:[^,\[\]]|\[[^\[\]]+\])+", nodelist)
    if first is None:
        raise ValueError(f"SLURM_STEP_NODELIST: {nodelist!r} is not a list of hosts")
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first[0])


def interface_to(host: str) -> str:
    """The name of the network interface that leads to a host; empty if the host is this machine alone, or unknown.

    gloo takes the interface with the address of this machine's name, which other nodes may not reach.
    """
    with suppress(OSError):
        family, *_, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)  # sends nothing
            own = probe.getsockname()[0]
        if not ipaddress.ip_address(own).is_loopback:
            owners = (
                name for name, entries in psutil.net_if_addrs().items() if own in {each.address for each in entries}
            )
            return next(owners, "")
    return ""


def check_interface(environ: Mapping[str, str]) -> None:
    """Raise UserError if this machine has not the interfaces that a user has named for gloo."""
    here = [name for _, name in socket.if_nameindex()]
    if any(name not in here for name in filter(None, environ.get(INTERFACE, "").split(","))):
        raise UserError(Fault(INTERFACE, environ[INTERFACE], "machine", "no such network interface", ", ".join(here)))


def connect_store(world: World, timeout_seconds: int) -> Store:
    """A store of small values that all processes see.

    Raises UserError if not all processes connect in time.
    """
    if not has_launcher(os.environ):
        return dist.HashStore()
    _, method = address(os.environ)
    timeout = timedelta(seconds=timeout_seconds)
    try:
        store: Store = next(iter(dist.rendezvous(method, world.rank, world.size, timeout=timeout)))[0]
        return store
    except dist.DistError as error:
        reason = f"process {world.rank} of {world.size} did not meet the others in this time ({first_line(error)})"
        fault = Fault("run.timeout_seconds", str(timeout_seconds), "failed", reason, remedy="see their messages")
        raise UserError(fault) from None


def gather_messages(store: Store, world: World, name: str, text: str) -> list[str]:
    """The texts of all processes under a name, by rank. Raises UserError that names a process without one in time."""
    store.set(f"{name}/{world.rank}", text)
    messages = [receive(store, world, f"{name}/{rank}", rank) for rank in range(world.size)]
    store.set(f"{name}/read/{world.rank}", "")
    if world.is_main:  # the store may be in this process, so it waits until all others have read
        for rank in range(world.size):
            receive(store, world, f"{name}/read/{rank}", rank)
    return messages


def receive(store: Store, world: World, key: str, rank: int) -> str:
    """The text of process `rank` under a key. Raises UserError if there is none in time."""
    try:
        return str(store.get(key).decode())
    except dist.DistError as error:
        value = f"no message within run.timeout_seconds, or its store is gone ({first_line(error)})"
        fault = Fault(f"process {rank} of {world.size}", value, "failed", remedy="see its own messages")
        raise UserError(fault) from None


def first_line(error: Exception) -> str:
    """The message of an error of torch, without the C++ frames that follow it."""
    return str(error).partition("\n")[0]
