"""Start the processes of a stage, in the way `run.launcher` names, as many as `run.processes`.

    python -m pipeline.launch train | evaluate

torchrun: its own API, in this process, for one node or several. spawn: multiprocessing, as torch's tutorials do it.
slurm: srun starts them in the job this runs in. The first two give every process the same variables (RANK, LOCAL_RANK,
WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and find a free port by themselves; Slurm has variables of its own (see world.py).
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
from collections.abc import Callable, Iterator, Sequence
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

from pipeline import stage, validity
from pipeline.engine import variables
from pipeline.engine.stopping import SIGNALS
from pipeline.engine.world import PEER_DIED
from pipeline.errors import Refusal, Stopped
from pipeline.params import Params, Run

STAGES = ("train", "evaluate")
ASKED: set[int] = set()  # the signals that this launcher was asked to stop by, and has passed on


def torchrun(module: str, run: Run) -> None:
    """Start this node's processes of `python -m module` through torchrun's agent.

    Raises Refusal naming the first process that failed, or a node that cannot be reached.
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
        with _passing_on(lambda: [child.pid for child in psutil.Process().children()]):
            elastic_launch(config, "setpriv")("--pdeathsig", "TERM", sys.executable, "-m", module)
    except ChildFailedError as error:
        # Those that left because another died are not to be named.
        failures = sorted(error.failures.items(), key=lambda item: (item[1].exitcode == PEER_DIED, item[1].timestamp))
        rank, failure = failures[0]
        raise Refusal(f"process {rank} of {run.processes} ended with {_status(failure.exitcode)}; see above") from None
    except (RendezvousError, DistError) as error:
        raise Refusal(f"run.rendezvous: {run.rendezvous!r}: the nodes cannot meet there: {error}") from None


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
    """Start the processes of `module` with multiprocessing. Raises Refusal naming the first that failed."""
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
        with _passing_on(context.pids):
            while not context.join():
                pass
    except mp.ProcessExitedException as error:
        raise Refusal(
            f"process {error.error_index} of {run.processes} ended with {_status(error.exit_code)}; see above"
        ) from None


def _be_process(rank: int, module: str, shared: dict[str, str]) -> None:
    """In a new process: run `module` as `python -m module` would."""
    if (launcher := multiprocessing.parent_process()) and os.getppid() != launcher.pid:
        os._exit(1)  # the launcher ended before torch had the kernel terminate this process with it
    os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank))
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def slurm(module: str, run: Run) -> None:
    """Have srun start the processes in this Slurm job. Raises Refusal outside a job, or if a process failed."""
    if "SLURM_JOB_ID" not in os.environ or shutil.which("srun") is None:
        raise Refusal(
            "run.launcher: 'slurm' needs a Slurm job and srun (found: none); start it in one: sbatch or salloc with "
            f"--nodes={run.nodes} --ntasks={run.processes}; or take torchrun"
        )
    command = ["srun", f"--nodes={run.nodes}", f"--ntasks={run.processes}", "--kill-on-bad-exit=1"]
    with subprocess.Popen([*command, sys.executable, "-m", module]) as process, _passing_on(lambda: [process.pid]):
        code = process.wait()
    if code:
        raise Refusal(f"srun ended with {_status(code)}; see above")


@contextmanager
def _passing_on(pids: Callable[[], Sequence[int]]) -> Iterator[None]:
    """Inside the block, a signal that would end this process goes to those of `pids`; when they end, it does.

    Each signal goes once: that of a DVC which ends comes right after the one that ended it, and would meet processes
    which have saved and are about to say so. While there are none, the signal ends this process.
    """

    def pass_on(number: int, _: FrameType | None) -> None:
        if number in ASKED:
            return
        ASKED.add(number)
        found = pids()
        if not found:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _status(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


LAUNCHERS: dict[str, Callable[[str, Run], None]] = {"torchrun": torchrun, "spawn": spawn, "slurm": slurm}


def with_restarts(module: str, run: Run) -> None:
    """Start the processes, and after a failure again, up to `run.max_restarts` times; never after a wish to stop.

    Raises Refusal for the last failure, and Stopped if the processes say, in a note, that they were asked to stop.
    """
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "stopped"
        for restart in range(run.max_restarts + 1):
            os.environ[stage.STOPPED_NOTE] = str(note)
            try:
                LAUNCHERS[run.launcher](module, run)
            except Refusal as failure:
                if not note.exists() and (ASKED or restart == run.max_restarts):
                    raise  # ASKED: processes that were just starting have nothing to save, and so leave no note
                print(f"launch: {failure}", file=sys.stderr)
            else:
                break
            finally:
                del os.environ[stage.STOPPED_NOTE]
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
            os.environ.update(variables.environment(config.train.threads, config.train.deterministic))
        except ValueError as error:
            raise Refusal(str(error)) from None
        if validity.apex_choices(config.train):
            from pipeline.engine import apex

            if fault := apex.fault():
                raise Refusal(
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
