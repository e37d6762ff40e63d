"""`--on slurm`: the runs of a study are jobs of a real Slurm on two nodes, with the bytes of local processes."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.base import files
from pipeline.base.errors import STOPPED
from pipeline.config import params
from pipeline.studies import runner, slurm, store, workcopy
from pipeline.studies.runner import Job
from tests.conftest import on_cpu, read_params, write_params
from tests.helpers import slurm as nodes
from tests.helpers import studies
from tests.helpers.network import Node
from tests.helpers.projects import call, create_project
from tests.helpers.refusals import refuses
from tests.helpers.trainings import wait_for
from tests.test_folds import FOLDER, SMALL, outputs

LONG: dict[str, Any] = SMALL | {"train__epochs": 90, "run__epoch_checkpoint_seconds": 0}
FOLDS = (sys.executable, "-m", "pipeline", "folds", "--folds", "2", "--jobs", "2")
ON = ("--on", "slurm --exclusive")  # each job has a node of its own


def start(node: Node, folder: Path, said: Path) -> subprocess.Popen[bytes]:
    """A study on the cluster, started on this node. What it prints goes to a file."""
    with said.open("w") as log:
        command = [*node.enter, "env", f"--chdir={folder}", *FOLDS, *ON]
        return subprocess.Popen(command, stdout=log, stderr=log)


def states(node: Node) -> list[str]:
    """The states of all jobs in the queue, with their partitions."""
    return node.output("squeue", "--noheader", "--format=%P %T").splitlines()


@pytest.mark.nightly(
    "a cluster, four trainings, three of them stopped or killed: five minutes; make test has the job that Slurm gets"
)
def test_a_study_on_slurm_gives_the_bytes_of_local_processes(tmp_path: Path) -> None:
    """Also after Ctrl-C, which leaves the jobs, after a preemption, and after the loss of a node."""
    local, project = (create_project(tmp_path / name / "project", **LONG) for name in ("local", "cluster"))
    call(local, *FOLDS)
    copies, said = project / FOLDER, tmp_path / "said"
    with nodes.cluster(tmp_path / "slurm", silent_seconds=10) as (node, other):

        def wait_for_epoch(epoch: int, study: subprocess.Popen[bytes]) -> None:
            wait_for(lambda: study.poll() is not None or len(studies.copies_at(copies, epoch)) == 2, "no epoch")
            assert study.poll() is None, said.read_text()

        first = start(node, project, said)
        wait_for_epoch(2, first)
        node.output("pkill", "-INT", "--full", "pipeline folds")
        assert first.wait() == STOPPED
        assert len(states(node)) == 2
        # At once: the jobs go on without the study, and must not end before they are preempted.
        node.output("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 2")
        wait_for(lambda: states(node).count("main PENDING") == 2, "not preempted")
        studies.remove_logs(copies)
        again = start(node, project, said)
        wait_for(lambda: "waiting for job" in said.read_text(), "it does not wait")
        wait_for_epoch(1, again)
        other.signal("KILL")
        assert again.wait() == 0, said.read_text()
        restarts = re.findall(r"Restarts=(\d)", node.output("scontrol", "show", "job", "--oneliner"))
    assert sorted(restarts)[-2:] == ["1", "2"]
    assert outputs(project) == outputs(local)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs in the place of Slurm's. A test writes them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "squeue"):
        (folder / name).touch(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.1)
    return folder


def test_a_job_asks_for_what_its_run_needs(stand_in: Path, tmp_path: Path) -> None:
    """The user's own options come last. A job that Slurm ends, or refuses, is a failure with Slurm's words."""
    copy = tmp_path / "copy"
    copy.mkdir()
    write_params(copy / "params.yaml", on_cpu(read_params(), train__threads=3, train__parallel="ddp", run__processes=2))
    (slot,) = runner.slots(params.load(copy / "params.yaml"), 1, "slurm --time=1:00 --partition='a b'")
    for status in (1, 0):
        script = f'printf "%s\\n" "$@" > {stand_in}/words; echo DUE TO TIME LIMIT >&2; exit {status}'
        (stand_in / "sbatch").write_text(f"#!/bin/sh\n{script}\n")
        ((_, failures),) = runner.run_all([Job("fold 1", copy, ("train",))], [slot], "folds")
        named = [(each.key, each.kind, "DUE TO TIME LIMIT" in each.reason) for each in failures]
        assert named == [("fold 1", "failed", True)] * status
    words = (stand_in / "words").read_text().splitlines()
    needed = {"--wait", "--requeue", "--nodes=1", "--ntasks=1", "--cpus-per-task=6", f"--chdir={copy}"}
    assert needed < {*words}
    assert words[-2:] == ["--time=1:00", "--partition=a b"]
    assert any(re.fullmatch("--wrap=exec .* dvc repro --single-item train", word) for word in words)


def test_what_a_job_reads_stays_until_it_has_ended(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C has ended a sweep and left a job: the next start waits for it before it removes what all trials read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workcopy, "repair_cache", lambda _: False)
    source = workcopy.FOLDER / "mine" / store.SOURCE
    files.write_text(source / "data", "")
    files.write_text(source.with_name("trial") / slurm.JOB, "perennial-1")
    (stand_in / "squeue").write_text("#!/bin/sh\nmkdir asked && echo perennial-1 7\n")
    with refuses(("squeue", "failed")), store.study_folder("mine", "mine"):  # Slurm does not answer the second time
        pass
    assert (source / "data").exists()
    (stand_in / "squeue").write_text("#!/bin/sh\n")
    with store.study_folder("mine", "mine"):
        assert not source.exists()
