"""The ways to start the processes of a run: torchrun, multiprocessing, and Slurm's srun.

torchrun and `spawn` set the same variables in every process (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)
and find a free port. Slurm sets its own (see world.py and rendezvous.py). Each launcher forwards the signals that it
receives to its processes, and ends stopped processes (`supervise`).

Only torchrun and `spawn` need torch, whose import takes two seconds. A single process needs neither (`alone`).
"""

import logging
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

import psutil

from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Run
from pipeline.running.exits import ENDED_NOTE, GRACE_SECONDS, PEER_DIED, SIGNALS
from pipeline.running.watchdog import Watch
from pipeline.versioning import children

# The signals that asked this launcher to stop and that it has forwarded → the time of the first one (time.monotonic())
SIGNAL_TIMES: dict[int, float] = {}
# The variables of a single process. Port 0: the system chooses one. No agent of torchrun has a store for the process.
ALONE = {
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
    **{"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "TORCHELASTIC_USE_AGENT_STORE": "False"},
}
SRUN_SECONDS = 25  # in which srun ends its other processes after a failure; SIGKILL does not wait for KillWait


class NodeLost(UserError):
    """A node of this Slurm job does not answer. Another start in this job would wait for this node for ever."""


def start(command: Sequence[str], run: Run) -> None:
    """Run this node's processes of `python -m` with these words to their end, as run.launcher says.

    Raises UserError naming the first process that failed, or a node that cannot be reached.
    """
    is_alone = run.processes == 1 and run.launcher != "slurm"  # srun may start it on another node
    (alone if is_alone else LAUNCHERS[run.launcher])(command, run)


def alone(command: Sequence[str], run: Run) -> None:
    """Run a single process. It gets the variables that torchrun and `spawn` set, and hosts its store itself."""
    environ = {**os.environ, **ALONE}

    def pids() -> dict[str, int]:
        return {_process_name(0, run): process.pid} if process.returncode is None else {}

    with (
        subprocess.Popen([sys.executable, "-m", *command], env=environ, start_new_session=True) as process,
        supervise(pids, run.timeout_seconds) as watch,
    ):
        code = children.wait(process)
    if code:
        raise UserError(*first_to_end({0: code}, watch, run))


def torchrun(command: Sequence[str], run: Run) -> None:
    """Run this node's processes with torchrun's agent, in this process. Raises as `start` does."""
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from pipeline.running import nodes

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the UserError names the failed process
    per_node = run.processes // run.nodes
    config = LaunchConfig(
        min_nodes=run.min_processes // per_node or run.nodes,
        max_nodes=run.nodes,
        nproc_per_node=per_node,
        run_id="perennial",
        rdzv_endpoint=run.rendezvous,
        **nodes.torchrun_settings(run),
        max_restarts=0,
        monitor_interval=0.1,
        signals_to_handle="SIGUSR2",  # not SIGNALS: at the second of those the agent would leave its processes alone
    )
    if run.min_processes:
        # The agent of torch 2.11 publishes its store's address in the first round only. A node that joins later needs
        # it too, and would wait for ever.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    try:
        with supervise(lambda: _child_pids(run), run.timeout_seconds) as watch, nodes.limit_wait(watch, run):
            elastic_launch(config, sys.executable)("-m", *command)
    except ChildFailedError as error:
        by_time = sorted(error.failures.items(), key=lambda failure: failure[1].timestamp)
        codes = {rank: failure.exitcode for rank, failure in by_time}
        raise UserError(*first_to_end(codes, watch, run)) from None
    except (RendezvousError, DistError) as error:
        raise UserError(nodes.rendezvous_fault(run, f"the nodes cannot meet there: {error}")) from None


def spawn(command: Sequence[str], run: Run) -> None:
    """Run this node's processes with multiprocessing. Raises as `start` does."""
    import torch.multiprocessing as mp

    from pipeline.running import nodes

    per_node = run.processes // run.nodes
    ranks = range(run.node_rank * per_node, (run.node_rank + 1) * per_node)
    pids: dict[str, int] = {}
    try:
        with supervise(lambda: pids, run.timeout_seconds) as watch, nodes.shared_store(watch, run) as address:
            shared = {"WORLD_SIZE": str(run.processes), "LOCAL_WORLD_SIZE": str(per_node), **address}
            arguments = (ranks.start, command, shared)
            context = mp.start_processes(_run_module, arguments, nprocs=per_node, join=False, start_method="spawn")
            # The watchdog's thread reads it, so it is changed in one operation.
            pids.update(dict(zip([_process_name(rank, run) for rank in ranks], context.pids(), strict=True)))
            while not context.join(grace_period=GRACE_SECONDS):
                pass
    except mp.ProcessExitedException as error:
        statuses = {rank: process.exitcode for rank, process in zip(ranks, context.processes, strict=True)}
        codes = {rank: status for rank, status in statuses.items() if status}
        first = {ranks[error.error_index]: error.exit_code}
        raise UserError(*first_to_end(first | codes, watch, run)) from None


def _run_module(local_rank: int, first_rank: int, command: Sequence[str], shared: dict[str, str]) -> None:
    """In a new process: run `module` as `python -m` with these words would."""
    os.environ.update(shared, RANK=str(first_rank + local_rank), LOCAL_RANK=str(local_rank))
    sys.argv = [*command]
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def slurm(command: Sequence[str], run: Run) -> None:
    """Run the processes with srun in this Slurm job. Raises UserError outside a job, or if a process failed.

    NodeLost if the end of a process is not known because its node cannot be reached.
    """
    if "SLURM_JOB_ID" not in os.environ or shutil.which("srun") is None:
        options = f"--nodes={run.nodes} --ntasks={run.processes}"
        remedy = f"start it in a job: sbatch or salloc with {options}; or take torchrun"
        raise UserError(Fault("run.launcher", "slurm", "machine", "no Slurm job, or no srun", remedy=remedy))
    with (
        subprocess.Popen([*srun(run, os.environ), sys.executable, "-m", *command]) as process,
        supervise(lambda: {"srun": process.pid}, run.timeout_seconds, saves=False) as watch,
    ):
        code = _wait_for_srun(process, watch)
    if code:
        raise UserError(*(watch.faults.values() or [_exit_fault("srun", code)]))


def _wait_for_srun(process: subprocess.Popen[bytes], watch: Watch) -> int:
    """The exit status of srun. It is killed if it still runs SRUN_SECONDS after one of its processes has failed.

    After a failure srun ends the other processes and waits for them. If a node is unreachable, it waits for ever.
    Raises NodeLost if it was killed.
    """
    note, seconds = Path(os.environ[ENDED_NOTE]), 0  # seconds since the first failure
    while seconds < SRUN_SECONDS:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(1)
        # By listing the folder: over NFS a file of another node can be invisible for a minute under its own name.
        if any(note.parent.glob(f"{note.name}*")):
            seconds += 1
    if (code := process.poll()) is not None:
        return code
    watch.end("srun", f"waited {seconds} s for a node that does not answer, after a process had failed (see above)")
    process.wait()
    raise NodeLost(replace(watch.faults["srun"], remedy="submit the job again, on nodes that reach each other"))


def srun(run: Run, environ: Mapping[str, str]) -> list[str]:
    """The srun command for the processes of a run. It names the job's cores per task, which srun does not inherit.

    [Slurm 22.05, release notes: srun no longer reads SLURM_CPUS_PER_TASK]
    """
    cores = environ.get("SLURM_CPUS_PER_TASK")
    per_task = [f"--cpus-per-task={cores}"] if cores else []
    return ["srun", f"--nodes={run.nodes}", f"--ntasks={run.processes}", *per_task, "--kill-on-bad-exit=1"]


def _process_name(rank: int, run: Run) -> str:
    return f"process {rank} of {run.processes}"


def _child_pids(run: Run) -> dict[str, int]:
    """The processes that torchrun's agent has started: process ids by name."""
    pids = {}
    for child in psutil.Process().children():
        with suppress(psutil.Error, KeyError):  # it has ended, or is not yet Python
            pids[_process_name(int(child.environ()["RANK"]), run)] = child.pid
    return pids


def first_to_end(codes: dict[int, int], watch: Watch, run: Run) -> list[Fault]:
    """The process that ended first, and how it ended.

    In this order: the processes that the launcher killed, the one that the other processes name, the first that failed.
    `codes`: the exit statuses by rank, in the order in which they were read. It can differ from that of the ends.
    """
    if watch.faults:
        return list(watch.faults.values())
    note = Path(os.environ[ENDED_NOTE])
    first_rank = int(note.read_text() or "-1") if note.exists() else -1
    for rank, code in codes.items():
        if rank == first_rank or (first_rank not in codes and code != PEER_DIED):
            return [_exit_fault(_process_name(rank, run), code)]
    process = _process_name(first_rank, run) if first_rank >= 0 else "a process of another node"
    remedy = "see above, and the messages of its node"
    return [Fault(process, "ended or was silent, so the others left", "failed", remedy=remedy)]


def _exit_fault(process: str, code: int) -> Fault:
    status = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    return Fault(process, f"ended with {status}", "failed", remedy="see above")


@contextmanager
def supervise(pids: Callable[[], Mapping[str, int]], timeout_seconds: int, saves: bool = True) -> Iterator[Watch]:
    """In the block, stopped processes of `pids()` (process ids by name) are ended, and SIGNALS are forwarded to them.

    The launcher ends when they end. A signal before there are any ends the launcher; a signal right after they have
    stopped is ignored. Each signal is forwarded once: when DVC is terminated, a second one follows, and would meet
    processes that are saving. A second one kills the processes that are stopped. Ctrl-Z stops the processes too,
    because torchrun's are not in the terminal's job. `saves`: see Watch.
    """
    watch = Watch(pids, timeout_seconds, saves)

    def forward(number: int, _: FrameType | None) -> None:
        if not pids():
            # The processes have stopped, and this launcher is about to report it. After GRACE_SECONDS it hangs.
            if any(time.monotonic() - seconds < GRACE_SECONDS for seconds in SIGNAL_TIMES.values()):
                return
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        watch.forward(number, again=number in SIGNAL_TIMES)
        SIGNAL_TIMES.setdefault(number, time.monotonic())

    def pause(_: int, __: FrameType | None) -> None:
        _send(signal.SIGSTOP, [*pids().values(), os.getpid()])
        _send(signal.SIGCONT, pids().values())  # runs after somebody has continued this process

    handlers = dict.fromkeys(SIGNALS, forward) | {signal.SIGTSTP: pause}
    previous_handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield watch
    finally:
        watch.close()
        for number, handler in previous_handlers.items():
            # After a request to stop, the command still has to report how the processes stopped.
            signal.signal(number, signal.SIG_IGN if SIGNAL_TIMES else handler)


def _send(number: int, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


# name → starts the processes of (words after python -m, run)
LAUNCHERS: dict[str, Callable[[Sequence[str], Run], None]] = {"torchrun": torchrun, "spawn": spawn, "slurm": slurm}
