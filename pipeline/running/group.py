"""The process group of the processes of a stage, and the exit of a process."""

import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from pipeline.config.params import Backend
from pipeline.learning.collectives import backend_for
from pipeline.learning.world import World
from pipeline.running import rendezvous
from pipeline.running.exits import ENDED_NOTE, FAILED, PEER_DIED
from pipeline.running.rendezvous import Store, has_launcher

ANSWER_SECONDS = 3


@contextmanager
def process_group(world: World, backend: Backend, timeout_seconds: int, launcher_store: Store) -> Iterator[None]:
    """In the block the processes can exchange tensors. No wait for another process lasts longer than the timeout.

    `launcher_store`: the one in which they have met. To ask who is silent they have one of their own, in rank 0: it
    answers also if the launcher is stopped or has ended.
    """
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    if not has_launcher(os.environ):
        yield
        return
    timeout, backend = timedelta(seconds=timeout_seconds), backend_for(world.device, backend)
    host, _ = rendezvous.address(os.environ)
    if backend == "gloo" and (interface := rendezvous.interface_to(host)):
        os.environ.setdefault(rendezvous.INTERFACE, interface)
    rendezvous.check_interface(os.environ)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", launcher_store),
        rank=world.rank,
        world_size=world.size,
        timeout=timeout,
        device_id=world.device if backend == "nccl" else None,
    )
    has_failed = False
    try:
        if world.is_main:
            store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
            launcher_store.set("perennial/port", str(store.port))
        else:
            port = int(launcher_store.get("perennial/port"))
            store = dist.TCPStore(host, port, is_master=False, timeout=timeout)
        store.set(f"process/{world.rank}", f"(pid {os.getpid()}) on {os.uname().nodename}")
        peers = [rendezvous.receive(store, world, f"process/{rank}", rank) for rank in range(world.size)]
        try:
            yield
            dist.barrier()  # the store ends with rank 0, so no process may still need it
        except RuntimeError as error:
            if is_peer_failure(error):
                leave(error, store, world, peers)
            raise
    except BaseException as error:
        has_failed = True
        # The error's frames reference the wrapped model, which references the group. The model must be freed first:
        # otherwise the end of the process can hang.
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        # After an error, NCCL would wait for unfinished exchanges without end: `run_process` ends the process instead.
        if not (has_failed and backend == "nccl"):
            dist.destroy_process_group()


def run_process(work: Callable[[], int]) -> int:
    """The exit status of `work`. If `work` failed inside `process_group`, the process ends here at once.

    A failure leaves a file for the launcher, which may not see this process's end: see launchers.slurm.
    """
    status = 1
    try:
        status = work()
    except Exception:
        if not dist.is_initialized():
            raise
        traceback.print_exc()
    finally:
        if status and (note := os.environ.get(ENDED_NOTE)):
            with suppress(OSError):
                Path(note + FAILED).touch()
    if dist.is_initialized():
        with suppress(OSError):
            print(end="", flush=True)  # stdout may be closed
            sys.stderr.flush()
        os._exit(status)
    return status


def leave(error: RuntimeError, store: Store, world: World, peers: Sequence[str]) -> NoReturn:
    """End this process at once, because an exchange failed. Names the processes that are silent or have ended.

    The first process on this machine that leaves tells the launcher the rank. The order of exits does not show it.
    """
    silent = silent_ranks(store, world)
    names = ", ".join(f"process {rank} of {world.size} {peers[rank]}" for rank in silent)
    cause = f"{names} ended or was silent" if silent else "an exchange with another process failed"
    os.write(2, f"process {world.rank} leaves: {cause} ({rendezvous.first_line(error)})\n".encode())
    if note := os.environ.get(ENDED_NOTE):
        with suppress(OSError), Path(note).open("x") as file:
            file.write(str(silent[0] if silent else -1))
    os._exit(PEER_DIED)


def silent_ranks(store: Store, world: World) -> list[int]:
    """The processes that do not answer. Every process whose exchange failed calls this, at about the same time.

    Rank 0 hosts the store. If it is silent, a call of the store does not return, and rank 0 alone is named.
    """
    answered: list[int] = []

    def ask() -> None:
        with suppress(RuntimeError):  # the store has ended with rank 0
            store.set(f"alive/{world.rank}", "")
            time.sleep(ANSWER_SECONDS)
            answered.extend(rank for rank in range(world.size) if store.check([f"alive/{rank}"]))
            time.sleep(ANSWER_SECONDS if world.is_main else 0)  # others still ask

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(3 * ANSWER_SECONDS)
    return [rank for rank in range(world.size) if rank not in answered] if answered else [0]


def is_peer_failure(error: RuntimeError) -> bool:
    """Whether an exchange failed because another process ended or was silent for too long."""
    return (
        isinstance(error, dist.DistError) or re.search(r"gloo|NCCL|[Cc]onnection|[Tt]imed out", str(error)) is not None
    )
