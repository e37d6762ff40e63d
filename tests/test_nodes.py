"""Several nodes, several launches at a time, and Slurm write the bytes of one node.

A node is a folder on this machine with its own params and data. The launchers are real and meet over the network.
"""

import os
import re
import shlex
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from pipeline.base.errors import UserError
from pipeline.config import params
from pipeline.learning import determinism
from pipeline.learning.world import World
from pipeline.running import rendezvous
from pipeline.running.rendezvous import check_size
from pipeline.stages import train
from tests.conftest import on_cpu
from tests.faults import network
from tests.helpers import slurm
from tests.helpers.nodes import TRAIN, TWO, nodes, start
from tests.helpers.ranks import free_port
from tests.helpers.ranks import train as train_ranks
from tests.helpers.refusals import refuses
from tests.helpers.trainings import ALONE, launch, messages, outputs, small_world, wait_for, wait_for_epoch
from tests.helpers.trainings import start as start_training

ELASTIC: dict[str, Any] = {
    "train__parallel": "elastic", "train__shards": 4, "train__epochs": 16, "train__model": "mobilenet_v3_small",
}  # fmt: skip


def finish(*processes: subprocess.Popen[str]) -> list[str]:
    """Wait until all end with status 0. Returns their standard errors, where these are pipes."""
    words = [process.communicate()[1] or "" for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n---\n".join(words)
    return words


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The outputs of two processes on one node."""
    return outputs(train_ranks(small_world(tmp_path_factory.mktemp("one_node"), **TWO)))


SPAWN = pytest.param("spawn", marks=pytest.mark.nightly("the same for another launcher; make test-ci has torchrun"))


@pytest.mark.slow("two launchers and their processes; make test has torchrun on one node")
@pytest.mark.parametrize("launcher", ["torchrun", SPAWN])
def test_two_nodes_write_the_bytes_of_one(one_node: dict[str, str], tmp_path: Path, launcher: str) -> None:
    """Two launchers with one process each: the first node writes what one node would, the other nothing."""
    first, second = nodes(tmp_path, run__launcher=launcher, train__backend="gloo")
    _, words = finish(start(first, TRAIN), start(second, TRAIN))
    assert outputs(first) == one_node
    assert not (second / "models").exists()
    assert not (second / "metrics").exists()
    assert "epoch" not in words


@pytest.mark.nightly("two launchers of the same training; make test-ci has two nodes that write the bytes of one")
def test_a_cluster_gives_a_node_its_place(one_node: dict[str, str], tmp_path: Path) -> None:
    """Two nodes in one folder, as of a shared volume: the same params, and the variables of a TrainJob of Kubeflow."""
    host, port = "127.0.0.1", str(free_port())
    folder = small_world(tmp_path, **TWO, run__nodes=2, run__rendezvous="node0:29400")
    job = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": host, "PET_MASTER_PORT": port}
    finish(*(start(folder, TRAIN, **job, PET_NODE_RANK=str(rank)) for rank in (0, 1)))
    assert outputs(folder) == one_node


def test_another_number_of_processes_than_the_params_say_is_refused(
    raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be another model: `torchrun --nproc_per_node=2` with run.processes: 1. Elastic runs may have fewer."""
    run = params.parse(on_cpu(raw, **TWO)).run

    def worlds(**changes: int) -> list[int]:
        """The sizes of worlds that are allowed."""
        allowed = []
        for size in range(1, 6):
            with suppress(UserError):
                check_size(World(0, 0, size, torch.device("cpu")), run.model_copy(update=changes))
                allowed.append(size)
        return allowed

    assert worlds(processes=1) == [1]
    assert worlds(processes=2) == [2]
    assert worlds(processes=4, min_processes=2) == [2, 3, 4]
    with refuses(("run.processes", "differs")):
        check_size(ALONE, run)
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(determinism, "make_deterministic", lambda *_: None)  # this process is that of the tests
    with refuses(("run.processes", "differs")):  # before the processes wait for each other
        train.run(params.parse(on_cpu(raw, **TWO, run__timeout_seconds=1)))


@pytest.mark.nightly("trains long enough to be killed, twice; make test-ci has two nodes, and kills on one")
def test_two_nodes_of_spawn_restart_together(tmp_path: Path) -> None:
    """run.max_restarts: a process of the second node is killed. Both launchers start theirs again, and meet again."""
    lines = {"train__epochs": 16, "run__launcher": "spawn"}
    first, second = nodes(tmp_path, **lines, run__max_restarts=1, run__timeout_seconds=60)
    running, other = start_training(first), start_training(second)
    wait_for_epoch(running, first, 2)
    (process,) = (child for child in psutil.Process(other.pid).children() if "spawn_main" in " ".join(child.cmdline()))
    process.kill()
    finish(running, other)
    assert "launch: restart 1 of 1" in messages(first)
    assert "going on from step" in messages(first)
    straight = small_world(tmp_path / "straight", **{**TWO, **lines})
    launch(straight)
    assert outputs(first) == outputs(straight)


@pytest.mark.nightly("trains long enough to lose a node; make test-ci has two nodes, and kills on one")
def test_a_lost_node_costs_no_byte(tmp_path: Path) -> None:
    """elastic, with run.min_processes: the second node is killed. The first goes on alone, to the bytes of one."""
    lines = {"run__min_processes": 1, "run__max_restarts": 1, "run__timeout_seconds": 30}
    first, second = nodes(tmp_path, **ELASTIC, **lines)
    running, lost = start_training(first), start_training(second)
    wait_for_epoch(running, first, 2)
    gone = psutil.Process(lost.pid).children(recursive=True)
    for process in gone:
        process.suspend()  # a lost node cannot ask the others to stop, but the processes of a killed launcher can
    for process in (psutil.Process(lost.pid), *gone):
        process.kill()
    lost.wait()
    straight = small_world(tmp_path / "straight", **{**TWO, **ELASTIC, "run__processes": 1})
    launch(straight)  # while the first node waits for the second
    finish(running)
    assert "launch: restart 1 of 1" in messages(first)
    assert "going on from step" in messages(first)
    assert outputs(first) == outputs(straight)


@pytest.mark.nightly("trains long enough to be joined; make test-ci has two nodes, and kills on one")
def test_a_node_that_joins_late_costs_no_byte(tmp_path: Path) -> None:
    """elastic, with run.min_processes: torchrun restarts the first node's process for it, and the run ends normally."""
    lines = {"run__min_processes": 1, "run__max_restarts": 1, "run__timeout_seconds": 5, "train__epochs": 30}
    first, second = nodes(tmp_path, **{**ELASTIC, **lines})
    running = start_training(first)
    wait_for_epoch(running, first)
    finish(running, start_training(second))
    assert "going on from step" in messages(first)
    assert "launch: restart" not in messages(first)
    straight = small_world(tmp_path / "straight", **{**TWO, **ELASTIC, "run__processes": 1, "train__epochs": 30})
    launch(straight)
    assert outputs(first) == outputs(straight)


@pytest.mark.nightly("two to four starts of torchrun; make test-ci has two nodes that write the bytes of one")
def test_trainings_at_the_same_time_do_not_collide(one_node: dict[str, str], tmp_path: Path) -> None:
    """Two launches of two processes each, with torchrun and spawn, run at the same time and write the same bytes."""
    folders = [small_world(tmp_path / name, **TWO, run__launcher=name) for name in ("torchrun", "spawn")]
    finish(*(start(folder, TRAIN) for folder in folders))
    assert [outputs(folder) for folder in folders] == [one_node, one_node]


def in_a_slurm_step(rank: int) -> dict[str, str]:
    """The variables that srun sets in a task of a step with two tasks on this machine."""
    step = {"JOB_ID": str(os.getpid()), "STEP_ID": "0", "STEP_NODELIST": "localhost", "STEP_NUM_TASKS": "2"}
    return {f"SLURM_{key}": value for key, value in {**step, "PROCID": str(rank), "LOCALID": str(rank)}.items()}


@pytest.mark.slow("two processes of a training; make test has the names of nodes")
def test_slurms_variables_tell_a_process_its_place(one_node: dict[str, str], tmp_path: Path) -> None:
    """Two processes in one folder, with the variables of srun, write the bytes of torchrun."""
    folder = small_world(tmp_path, **TWO, run__launcher="slurm")
    assert outputs(train_ranks(folder, [in_a_slurm_step(rank) for rank in (0, 1)])) == one_node


FIRST_HOSTS = {
    "localhost": "localhost", "a,b": "a", "gpu[07-09,12],cpu1": "gpu07", "node[1,3]": "node1", "node[10-12]": "node10",
    "n[1-2]-ib": "n1-ib", "cpu-1.x.org,b": "cpu-1.x.org", "rack1n[3-4],rack2n3": "rack1n3",
    "rack[1-2]n[3-4]": "rack1n3", "r[01,3]n[3-4]x,b": "r01n3x",
}  # fmt: skip


def test_the_first_host_of_a_node_list() -> None:
    assert {nodes: rendezvous.first_host(nodes) for nodes in FIRST_HOSTS} == FIRST_HOSTS


def test_the_interface_that_leads_to_a_host() -> None:
    """An address of this machine leads to its own interface. The loopback reaches no other node."""
    assert rendezvous.interface_to("127.0.0.1") == ""
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family == socket.AF_INET and not entry.address.startswith("127."):
                assert rendezvous.interface_to(entry.address) == name


@pytest.mark.nightly("waits of a cut cable, and up to four starts; make test-ci has two nodes")
@pytest.mark.parametrize("case", network.CASES, ids=lambda case: case.name)
def test_a_network_that_fails_costs_no_byte(case: network.Case, tmp_path: Path) -> None:
    """Nodes with addresses of their own: launchers start again by themselves, or say which node has ended."""
    network.check(case, tmp_path)


SUBMIT = ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]


@pytest.mark.nightly("a cluster that has to start; make test-ci gives two processes the variables that srun gives")
def test_a_real_slurm_writes_the_bytes_of_torchrun(one_node: dict[str, str], tmp_path: Path) -> None:
    """In jobs of sbatch (one node) and salloc (two) of a real cluster, srun starts two tasks."""
    batch = small_world(tmp_path / "batch", **TWO, run__launcher="slurm")
    allocated = small_world(tmp_path / "allocated", **TWO, run__launcher="slurm", run__nodes=2)
    in_a_batch = ["sbatch", "--wait", "--ntasks=2", "--nodes=1", "--output=job.log", f"--wrap={shlex.join(TRAIN)}"]
    with slurm.cluster(tmp_path / "slurm") as (node, _):
        batch_job = start(batch, [*node.enter, "env", f"--chdir={batch}", *in_a_batch])
        batch_job.communicate()
        assert batch_job.returncode == 0, (batch / "job.log").read_text()
        finish(start(allocated, [*node.enter, "env", f"--chdir={allocated}", "salloc", *SUBMIT, *TRAIN]))
    assert outputs(batch) == one_node
    assert outputs(allocated) == one_node


@pytest.mark.nightly("a cluster that has to start, and the waits of a cut cable; nothing shorter shows srun waiting")
def test_a_cut_cable_ends_the_job(tmp_path: Path) -> None:
    """Two nodes of a real Slurm. The cable between them is cut: the job ends, although srun would wait for ever."""
    folder = small_world(
        tmp_path / "world", **{**TWO, "train__epochs": 4000}, run__launcher="slurm", run__nodes=2,
        run__timeout_seconds=10, run__max_restarts=1,
    )  # fmt: skip
    log = folder / "job.log"
    with slurm.cluster(tmp_path / "slurm") as (node, other):
        node.output("sbatch", *SUBMIT, f"--chdir={folder}", f"--output={log}", f"--wrap={shlex.join(TRAIN)}")
        wait_for(lambda: log.exists() and "epoch 2/" in log.read_text(), "no epoch")
        other.output("ip", "link", "set", "eth0", "down")
        wait_for(lambda: "RUNNING" not in node.output("squeue", "--noheader", "--format=%T"), "the job goes on")
    words = log.read_text()
    assert re.search(r"train: srun \(pid \d+\)", words)
    assert "launch: restart" not in words
    assert not list(folder.glob("runs/launch-*"))
