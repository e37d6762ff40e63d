"""Start the processes of a stage, as many as `run.processes`, in the way that `run.launcher` names.

perennial features, perennial train, perennial evaluate
"""

import os
import re
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from pipeline.base import errors, files, linux, locks
from pipeline.base.errors import Fault, Stopped, UserError
from pipeline.checks import machine, validity
from pipeline.config.params import HOST_PORT, PATTERNS, Params, Run, Train
from pipeline.dataset import feature_file
from pipeline.running import checkpoint_copy, frame, launchers, variables
from pipeline.running.exits import ENDED_NOTE
from pipeline.running.launchers import SIGNAL_TIMES, NodeLost

LAUNCH = "launch-"  # the begin of the name of a folder with the notes of a launcher, in paths.runs
TORCHRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE"}  # variables of a process that torchrun has started


def with_restarts(command: Sequence[str], run: Run, runs: Path) -> None:
    """Start the processes; after a failure start them again, at most `run.max_restarts` times.

    There is no restart after a signal to stop, or if a node is lost. Raises UserError for the last failure, and Stopped
    if the processes leave a note that they were asked to stop. The notes are in `runs`, which all nodes of Slurm see.
    """
    runs.mkdir(parents=True, exist_ok=True)
    remove_notes(runs)
    with (
        tempfile.TemporaryDirectory(prefix=LAUNCH, dir=runs, ignore_cleanup_errors=True) as folder,
        locks.hold(Path(folder), "waits for its processes here"),
    ):
        stop_note, end_notes = Path(folder) / "stopped", Path(folder) / "ended"
        for restart in range(run.max_restarts + 1):
            os.environ |= {frame.STOPPED_NOTE: str(stop_note), ENDED_NOTE: str(end_notes)}
            os.environ[linux.PARENT] = "" if run.launcher == "slurm" else str(os.getpid())
            for note in Path(folder).glob("ended*"):
                note.unlink()
            try:
                launchers.start(command, run)
            except UserError as failure:
                # A process that is asked to stop while it starts has nothing to save, and so leaves no note.
                if not stop_note.exists() and (
                    SIGNAL_TIMES or restart == run.max_restarts or isinstance(failure, NodeLost)
                ):
                    raise
                print(f"launch: {failure}", file=sys.stderr)
            else:
                break
            finally:
                del os.environ[frame.STOPPED_NOTE], os.environ[ENDED_NOTE], os.environ[linux.PARENT]
            if stop_note.exists():
                break
            print(f"launch: restart {restart + 1} of {run.max_restarts}", file=sys.stderr)
        if stop_note.exists():
            raise Stopped(stop_note.read_text())


def remove_notes(runs: Path) -> None:
    """Remove the folders of launchers that were killed: nobody holds their lock, which each takes before all else."""
    for holder in runs.glob(f"{LAUNCH}*/holder"):
        with suppress(UserError), locks.hold(holder.parent, "is removing this folder"):
            files.remove(holder.parent)


def check_apex(settings: Train) -> None:
    """Raise UserError if the params ask for Apex and it does not load."""
    choices = validity.apex_choices(settings)
    if not choices:
        return
    from pipeline.learning import apex

    if fault := apex.fault():
        reason = f"Apex is installed, but {fault}"
        remedy = f"build it for this torch (make image); {validity.INSTEAD_OF_APEX}"
        raise UserError(*(Fault(key, value, "machine", reason, remedy=remedy) for key, value in choices.items()))


def on_this_node(run: Run) -> Run:
    """The same run on one node. An evaluation gives the same bytes for every number of processes."""
    processes = run.processes // run.nodes
    alone = {"nodes": 1, "node_rank": 0, "processes": processes, "min_processes": 0, "rendezvous": "localhost:0"}
    return run.model_copy(update=alone)


def placed_by_cluster(run: Run, environ: Mapping[str, str]) -> Run:
    """The run with this node's number and the address of node 0, if a cluster gives them in torchrun's variables.

    Kubeflow Trainer does. Raises UserError if the cluster has other numbers of nodes or processes than the params.
    [torch, argparse_util.py: PET_ and the name of an option of torchrun is the option's default]
    """
    if "PET_NODE_RANK" not in environ:
        return run
    nodes, per_node = str(run.nodes), str(run.processes // run.nodes)
    allowed = {
        "PET_NODE_RANK": ("run.nodes", nodes, [str(rank) for rank in range(run.nodes)]),
        "PET_NNODES": ("run.nodes", nodes, [nodes, ""]),
        # torchrun's words for "as many as there are"
        "PET_NPROC_PER_NODE": ("run.processes / run.nodes", per_node, [per_node, "", "auto", "gpu", "cpu"]),
    }
    errors.raise_if_any(
        Fault(key, value, "differs", f"the cluster has {name}={environ[name]}", remedy="make both equal")
        for name, (key, value, values) in allowed.items()
        if environ.get(name, "") not in values
    )
    host, port = environ.get("PET_MASTER_ADDR"), environ.get("PET_MASTER_PORT", "29500")  # torchrun's default
    place = {"rendezvous": f"{host}:{port}"} if host else {}
    if host and not re.fullmatch(HOST_PORT, place["rendezvous"]):
        fault = Fault("PET_MASTER_ADDR, PET_MASTER_PORT", place["rendezvous"], "value", allowed=PATTERNS[HOST_PORT])
        raise UserError(fault)
    return run.model_copy(update={"node_rank": int(environ["PET_NODE_RANK"]), **place})


def become_rank(name: str, run: Run) -> None:
    """Go on as one process of the stage, which another torchrun has started: `torchrun … -m pipeline train`.

    Raises UserError for what only a launcher of this project does.
    """
    if run.checkpoint_copy != "none":
        reason, remedy = "torchrun itself starts the processes, and none copies checkpoints", f"start perennial {name}"
        raise UserError(Fault("run.checkpoint_copy", run.checkpoint_copy, "pair", reason, "none", remedy))
    os.execv(sys.executable, [sys.executable, "-m", "pipeline", "rank", name])  # noqa: S606  (no shell is wanted)


def main(arguments: Namespace) -> int:
    """Run a stage by its processes; of a training, copy its checkpoints meanwhile. Returns the exit status."""
    name = arguments.command

    def start(config: Params) -> None:
        if name == "features" and config.train.head == "trained":
            feature_file.write_none(Path(config.paths.features))
            return
        arithmetic = config.train.arithmetic
        if name == "evaluate":  # with the arithmetic with which the model was trained
            arithmetic = variables.usable_arithmetic(Path(config.paths.models))
        else:
            frame.check_model(config.train)
        if name == "train" and (note := validity.unused_gpus(config, machine.read())):
            print(f"train: {note}", file=sys.stderr)
        variables.set_variables(config.train, arithmetic)
        check_apex(config.train)
        if os.environ.keys() >= TORCHRUN:
            become_rank(name, config.run)
        run = placed_by_cluster(config.run, os.environ) if name == "train" else on_this_node(config.run)
        frame.tell(f"{name}: starting processes: {run.processes}")
        with checkpoint_copy.keep(config, run) if name == "train" else nullcontext():
            with_restarts(("pipeline", "rank", name), run, Path(config.paths.runs))

    return frame.run_stage(name, start)
