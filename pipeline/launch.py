"""Start the processes of a stage, in the way `run.launcher` names, as many as `run.processes`.

    python -m pipeline.launch train | evaluate

torchrun: its own API, in this process, for one node or several. spawn: multiprocessing, as torch's tutorials do it.
slurm: srun starts them in the job this runs in. The first two give every process the same variables (RANK, LOCAL_RANK,
WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and find a free port by themselves; Slurm has variables of its own (see
engine/distributed.py).
"""

import logging
import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import torch.multiprocessing as mp
from torch.distributed import DistError, TCPStore
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pipeline import stage
from pipeline.base.errors import Stopped, UserError
from pipeline.config import validity
from pipeline.config.params import Params, Run
from pipeline.engine import environment
from pipeline.engine.distributed import ENDED_NOTE, PEER_DIED
from pipeline.engine.stopping import SIGNALS
from pipeline.engine.watchdog import Watch

STAGES = ("train", "evaluate")
FORWARDED: set[int] = set()  # the signals that this launcher was asked to stop by, and has passed on


def torchrun(module: str, run: Run) -> None:
    """Start this node's processes of `python -m module` through torchrun's agent.

    Raises UserError naming the first process that failed, or a node that cannot be reached.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # we say which process failed, in a line
    here = run.processes // run.nodes
    config = LaunchConfig(
        min_nodes=run.min_processes // here or run.nodes,
        max_nodes=run.nodes,
        nproc_per_node=here,
        run_id="perennial",
        rdzv_endpoint=run.rendezvous,
        **_rendezvous(run),
        max_restarts=0,
        monitor_interval=0.1,
        signals_to_handle="SIGUSR2",  # not those that ask us to stop: at a second one the agent would leave its ranks
    )
    if run.min_processes:
        # torch 2.11's agent tells where its store is in the first round alone: a node that joins later waits in vain.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    try:
        # setpriv: a process of which the launcher dies before it has asked the kernel itself (`stage.main`) ends too.
        with _watching(lambda: _children(run), run) as watch, _meeting(watch, run):
            elastic_launch(config, "setpriv")("--pdeathsig", "TERM", sys.executable, "-m", module)
    except ChildFailedError as error:
        codes = {
            rank: failure.exitcode
            for rank, failure in sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        }
        raise UserError(_first_to_end(codes, watch, run)) from None
    except (RendezvousError, DistError) as error:
        raise UserError(f"run.rendezvous: {run.rendezvous!r}: the nodes cannot meet there: {error}") from None


def _rendezvous(run: Run) -> dict[str, Any]:
    """How torchrun's agents, one a node, meet. The first node always has rank 0, which reads and writes the files."""
    if run.nodes == 1:
        # By its host name, as the processes else look for this machine, a container without a network does not know it.
        return {"rdzv_backend": "c10d", "local_addr": "localhost"}
    if run.min_processes == 0:  # ranks follow run.node_rank, so the same node has the same ranks every time
        return {"rdzv_backend": "static", "rdzv_configs": {"rank": run.node_rank, "timeout": run.timeout_seconds}}
    # Who comes is numbered in the order of names, and only the first one's is used as an address: "~" sorts last.
    host = run.rendezvous.rpartition(":")[0]
    return {
        "rdzv_backend": "c10d",
        "rdzv_configs": {
            "is_host": run.node_rank == 0,
            "join_timeout": 2 * run.timeout_seconds,
            "last_call_timeout": run.timeout_seconds,  # how long enough nodes wait for all
        },
        "local_addr": host if run.node_rank == 0 else f"~{run.node_rank}",
    }


def spawn(module: str, run: Run) -> None:
    """Start the processes of `module` with multiprocessing. Raises UserError naming the first that failed."""
    # This process keeps the store on a port that the system chose, so two runs at a time cannot collide.
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {
        "WORLD_SIZE": str(run.processes),
        "LOCAL_WORLD_SIZE": str(run.processes),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is already there; no process has to open one
    }
    try:
        context = mp.start_processes(
            _be_process, args=(module, shared), nprocs=run.processes, join=False, start_method="spawn"
        )
        names = [_name(rank, run) for rank in range(run.processes)]
        with _watching(lambda: dict(zip(names, context.pids(), strict=True)), run) as watch:
            while not context.join():
                pass
    except mp.ProcessExitedException as error:
        codes = {rank: process.exitcode for rank, process in enumerate(context.processes) if process.exitcode}
        first = {error.error_index: error.exit_code}
        raise UserError(_first_to_end(first | codes, watch, run)) from None


def _be_process(rank: int, module: str, shared: dict[str, str]) -> None:
    """In a new process: run `module` as `python -m module` would."""
    if (launcher := multiprocessing.parent_process()) and os.getppid() != launcher.pid:
        os._exit(1)  # the launcher ended before torch had the kernel terminate this process with it
    os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank))
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def slurm(module: str, run: Run) -> None:
    """Have srun start the processes in this Slurm job. Raises UserError outside a job, or if a process failed."""
    if "SLURM_JOB_ID" not in os.environ or shutil.which("srun") is None:
        raise UserError(
            "run.launcher: 'slurm' needs a Slurm job and srun (found: none); start it in one: sbatch or salloc with "
            f"--nodes={run.nodes} --ntasks={run.processes}; or take torchrun"
        )
    with (
        subprocess.Popen([*srun(run, os.environ), sys.executable, "-m", module]) as process,
        _watching(lambda: {"srun": process.pid}, run, waits=False) as watch,
    ):
        code = process.wait()
    if code:
        raise UserError("; ".join(watch.named.values()) or f"srun ended with {_status(code)}; see above")


def srun(run: Run, environ: Mapping[str, str]) -> list[str]:
    """The srun command for the processes of a run. The cores per task of the job are named: srun does not inherit them.

    [Slurm 22.05, release notes: srun no longer reads SLURM_CPUS_PER_TASK]
    """
    cores = environ.get("SLURM_CPUS_PER_TASK")
    named = [f"--cpus-per-task={cores}"] if cores else []
    return ["srun", f"--nodes={run.nodes}", f"--ntasks={run.processes}", *named, "--kill-on-bad-exit=1"]


def _name(rank: int, run: Run) -> str:
    return f"process {rank} of {run.processes}"


def _children(run: Run) -> dict[str, int]:
    """The processes that torchrun's agent has started, by name."""
    found = {}
    for child in psutil.Process().children():
        with suppress(psutil.Error, KeyError):  # gone, or not yet what it is going to be
            found[_name(int(child.environ()["RANK"]), run)] = child.pid
    return found


def _first_to_end(codes: dict[int, int], watch: Watch, run: Run) -> str:
    """Which process ended first, and how: the one that the launcher killed, or that the others saw, or that failed.

    `codes`: the exit statuses by rank, in the order in which they were seen, which says little on a busy machine.
    """
    if watch.named:
        return "; ".join(watch.named.values())
    note = Path(os.environ[ENDED_NOTE])
    said = int(note.read_text() or "-1") if note.exists() else -1
    failed = [rank for rank, code in codes.items() if code != PEER_DIED]
    for rank in [said] * (said in codes) + failed:
        return f"{_name(rank, run)} ended with {_status(codes[rank])}; see above"
    who = _name(said, run) if said >= 0 else "a process of another node"
    return f"{who} ended or was silent, and so the others left; see above, and what its node says"


@contextmanager
def _meeting(watch: Watch, run: Run) -> Iterator[None]:
    """Say that the nodes are waited for; end this launcher if they do not meet in time, for torch waits without end.

    It does where something else listens at run.rendezvous, and says nothing.
    """
    # With run.min_processes torchrun first waits for enough nodes, and then once more for all.
    seconds = run.timeout_seconds * (2 if run.min_processes else 1)
    if run.nodes > 1:
        print(
            f"launch: node {run.node_rank} of {run.nodes} waits for the others at {run.rendezvous} "
            f"(run.rendezvous), {seconds} s at most",
            file=sys.stderr,
        )

    def give_up() -> None:
        if watch.seen():
            return
        print(
            f"launch: run.rendezvous: {run.rendezvous!r}: the nodes did not meet there within {seconds} s "
            "(run.timeout_seconds); is node 0 started, does nothing else listen on this port, and does every node have "
            "the same params?",
            file=sys.stderr,
            flush=True,
        )
        shutil.rmtree(Path(os.environ[ENDED_NOTE]).parent, ignore_errors=True)
        os._exit(1)

    timer = threading.Timer(seconds + 5, give_up)  # by then torch has given up by itself, if it does
    timer.daemon = True
    if run.nodes > 1:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _watching(pids: Callable[[], Mapping[str, int]], run: Run, waits: bool = True) -> Iterator[Watch]:
    """Inside the block, the processes (`pids`, by name) are watched, and a signal that would end this one goes to them.

    When they end, it does. Each signal goes once: that of a DVC which ends comes right after the one that ended it, and
    would meet processes which have saved and are about to say so. Sent again, it ends those that are stopped. While
    there are none, the signal ends this process. Ctrl-Z stops them too: torchrun's are no part of the terminal's job.
    """
    watch = Watch(pids, run.timeout_seconds, waits)

    def pass_on(number: int, _: FrameType | None) -> None:
        if not pids():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        watch.pass_on(number, again=number in FORWARDED)
        FORWARDED.add(number)

    def pause(_: int, __: FrameType | None) -> None:
        for number, whom in ((signal.SIGSTOP, [*pids().values(), os.getpid()]), (signal.SIGCONT, pids().values())):
            for pid in whom:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    handlers = dict.fromkeys(SIGNALS, pass_on) | {signal.SIGTSTP: pause}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield watch
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        watch.close()


def _status(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


LAUNCHERS: dict[str, Callable[[str, Run], None]] = {"torchrun": torchrun, "spawn": spawn, "slurm": slurm}


def with_restarts(module: str, run: Run) -> None:
    """Start the processes, and after a failure again, up to `run.max_restarts` times; never after a wish to stop.

    Raises UserError for the last failure, and Stopped if the processes say, in a note, that they were asked to stop.
    """
    with tempfile.TemporaryDirectory() as folder:
        note, ended = Path(folder) / "stopped", Path(folder) / "ended"
        for restart in range(run.max_restarts + 1):
            os.environ |= {stage.STOPPED_NOTE: str(note), ENDED_NOTE: str(ended)}
            ended.unlink(missing_ok=True)
            try:
                LAUNCHERS[run.launcher](module, run)
            except UserError as failure:
                if not note.exists() and (FORWARDED or restart == run.max_restarts):
                    raise  # ASKED: processes that were just starting have nothing to save, and so leave no note
                print(f"launch: {failure}", file=sys.stderr)
            else:
                break
            finally:
                del os.environ[stage.STOPPED_NOTE], os.environ[ENDED_NOTE]
            if note.exists():
                break
            print(f"launch: restart {restart + 1} of {run.max_restarts}", file=sys.stderr)
        if note.exists():
            raise Stopped(note.read_text())


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in STAGES:
        print(f"usage: python -m pipeline.launch {' | '.join(STAGES)}", file=sys.stderr)
        return 2
    name = sys.argv[1]

    def start(config: Params) -> None:
        try:
            os.environ.update(environment.required_variables(config.train.threads, config.train.deterministic))
        except ValueError as error:
            raise UserError(str(error)) from None
        if validity.apex_choices(config.train):
            from pipeline.engine import apex

            if fault := apex.fault():
                raise UserError(
                    f"{', '.join(validity.apex_choices(config.train))}: Apex is installed, but {fault}; "
                    f"build it for this torch (make image); {validity.INSTEAD_OF_APEX}"
                )
        run = config.run
        if name == "evaluate":  # its bytes are the same for every number of processes, so this node does it alone
            alone = {
                "nodes": 1,
                "processes": run.processes // run.nodes,
                "min_processes": 0,
                "rendezvous": "localhost:0",
            }
            run = run.model_copy(update=alone)
        with_restarts(f"pipeline.{name}", run)

    return stage.main(name, start)


if __name__ == "__main__":
    sys.exit(main())
