"""Start the processes of a stage, in the way `run.launcher` names, as many as `run.processes`.

    python -m pipeline.launch train | evaluate

torchrun: its own API, in this process. spawn: multiprocessing, as torch's tutorials do it. Both give every process the
same variables (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and find a free port by themselves.
"""

import logging
import os
import runpy
import signal
import sys
from collections.abc import Callable

import torch.multiprocessing as mp
from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pipeline import stage
from pipeline.engine import world
from pipeline.errors import Refusal
from pipeline.params import Params

STAGES = ("train", "evaluate")


def torchrun(module: str, processes: int) -> None:
    """Start `processes` of `python -m module` through torchrun's agent. Raises Refusal naming the first that failed."""
    logging.getLogger("torch.distributed.elastic").setLevel(
        logging.CRITICAL
    )  # we say which process failed, in one line
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id="perennial",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # a free port
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", module)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise Refusal(f"process {rank} of {processes} ended with {_status(failure.exitcode)}; see above") from None


def spawn(module: str, processes: int) -> None:
    """Start `processes` of `module` with multiprocessing. Raises Refusal naming the first that failed."""
    # This process keeps the store on a port that the system chose, so two runs at a time cannot collide.
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_RUN_ID": "perennial",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is already there; no process has to open one
    }
    try:
        mp.start_processes(_be_process, args=(module, shared), nprocs=processes, start_method="spawn")
    except mp.ProcessExitedException as error:
        raise Refusal(
            f"process {error.error_index} of {processes} ended with {_status(error.exit_code)}; see above"
        ) from None


def _be_process(rank: int, module: str, shared: dict[str, str]) -> None:
    """In a new process: run `module` as `python -m module` would."""
    os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank))
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _status(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


LAUNCHERS: dict[str, Callable[[str, int], None]] = {"torchrun": torchrun, "spawn": spawn}


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in STAGES:
        print(f"usage: python -m pipeline.launch {' | '.join(STAGES)}", file=sys.stderr)
        return 2
    name = sys.argv[1]

    def start(config: Params) -> None:
        os.environ.update(world.environment(config.train.threads, config.train.deterministic))
        LAUNCHERS[config.run.launcher](f"pipeline.{name}", config.run.processes)

    return stage.main(name, start)


if __name__ == "__main__":
    sys.exit(main())
