"""docker/clusters/ and the workflow of a long training: what others are given has their form, and starts a training."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubeflow_trainer_api.models as forms
import pytest
from ruamel.yaml import YAML

from tests.conftest import PROJECT
from tests.helpers import slurm
from tests.helpers.projects import call, create_project
from tests.helpers.trainings import LONG, outputs
from tests.test_folds import SMALL

CLUSTERS = PROJECT / "docker/clusters"
TWO: dict[str, Any] = SMALL | {"train__parallel": "ddp", "run__processes": 2, "train__batch_size": 8}
# srun without Pyxis and GPUs: a container's options are left out, and its folder is the host's.
SRUN = """#!/bin/bash
for word; do shift; case $word in --container-*) ;; *) set -- "$@" "$word" ;; esac; done
exec env --unset=SLURM_GPUS_PER_NODE {srun} "$@"
"""


def test_every_field_of_the_trainjob_exists() -> None:
    """Kubeflow's own models keep what they know, and leave out a field that they do not know."""
    documents = list(YAML(typ="safe", pure=True).load_all(CLUSTERS / "kubeflow.yaml"))
    assert [document["kind"] for document in documents] == ["TrainingRuntime", "TrainJob"]
    for document in documents:
        form = getattr(forms, f"TrainerV1alpha1{document['kind']}")
        assert form.from_dict(document).to_dict() == document


@pytest.mark.nightly("a cluster that has to start, and two trainings; nothing shorter starts the script")
def test_the_script_of_pyxis_trains_on_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a real Slurm, and the host in the place of the container: the bytes of one node."""
    one, two = create_project(tmp_path / "one", **TWO), tmp_path / "two"
    call(one, sys.executable, "-m", "pipeline", "repro", "train")
    create_project(two, **TWO, run__nodes=2, run__rendezvous="node0:29400")
    call(two, sys.executable, "-m", "pipeline", "repro", "prepare", "weights")
    with slurm.cluster(tmp_path / "slurm") as (node, _):
        programs = tmp_path / "programs"
        programs.mkdir()
        (programs / "srun").write_text(SRUN.format(srun=node.output("which", "srun").strip()))
        (programs / "perennial").write_text(f'#!/bin/sh\nexec {sys.executable} -m pipeline "$@"\n')
        for program in programs.iterdir():
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_GPUS_PER_NODE", "1")
        script = (CLUSTERS / "pyxis.sh").read_text().replace("#SBATCH --gpus-per-node=4\n", "").replace(
            "perennial repro", "perennial repro train"
        )  # fmt: skip
        (two / "job.sh").write_text(script)
        log = two / "job.log"
        node.output("sbatch", "--wait", f"--chdir={two}", f"--output={log}", str(two / "job.sh"))
    assert (two / "models").exists(), log.read_text()
    assert outputs(two) == outputs(one)


# In the place of the container: the command on this machine, which is asked to stop after the sixth epoch.
JOB = """
import signal, subprocess, sys
with subprocess.Popen([*sys.argv[1:], "train"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
    epochs = 0
    for line in run.stdout:
        epochs += line.startswith("epoch ")
        if line.startswith("epoch ") and epochs == 6:
            run.send_signal(signal.SIGTERM)
        print(line, end="", flush=True)
sys.exit(run.returncode)
"""


@pytest.mark.nightly(
    "a whole training in three jobs; make test-ci moves a run to another machine by the copy of its checkpoint"
)
def test_a_training_goes_on_in_the_next_job(tmp_path: Path) -> None:
    """Each job of the workflow has a new checkout. It ends early and asks for another one, until the training ends."""
    whole = create_project(tmp_path / "whole", **SMALL | LONG)
    call(whole, sys.executable, "-m", "pipeline", "repro", "train")
    jobs = YAML(typ="safe", pure=True).load(PROJECT / ".github/workflows/long.yml")["jobs"]
    (step,) = [step for step in jobs["train"]["steps"] if step.get("id") == "train"]
    (tmp_path / "job.py").write_text(JOB)
    answers: list[str] = []
    while not answers or answers[-1] == "again=true":
        job = create_project(
            tmp_path / str(len(answers)), **SMALL | LONG, run__checkpoint_copy=str(tmp_path / "copies")
        )
        answer = tmp_path / "answer"
        environ = {**os.environ, "GITHUB_OUTPUT": str(answer), "LIMIT": "1h"}
        environ["INSIDE"] = shlex.join([sys.executable, str(tmp_path / "job.py")])
        environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
        command = ["bash", "-e", "-c", step["run"]]
        done = subprocess.run(command, cwd=job, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        answers.append(answer.read_text().strip())
        answer.unlink()
        assert len(answers) < 2 or "going on from step" in done.stdout
    assert len(answers) > 2
    assert answers[-1] == "again=false"
    assert outputs(job) == outputs(whole)
