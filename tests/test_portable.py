"""train.arithmetic: portable, and networks of whole numbers, give the same bytes on CPUs that QEMU emulates.

The emulator runs the real pipeline, more than ten times slower. QEMU emulates AVX2 and FMA, and no AVX-512.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest
import torch

from benchmarks.harness import workspace
from pipeline.answers import classify
from pipeline.answers.classify import Request
from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.checks import machine
from pipeline.config import params
from pipeline.config.params import Arithmetic
from pipeline.learning import determinism, environment
from pipeline.models import exported
from pipeline.models.description import Description, View
from pipeline.running import provenance, variables
from tests.conftest import PHOTOS, PROJECT, below, set_params
from tests.helpers.projects import stages_folder
from tests.helpers.refusals import refuses
from tests.helpers.trainings import ALONE, digests
from tests.test_features import SOLVED

QEMU = shutil.which("qemu-x86_64")
needs_qemu = pytest.mark.skipif(QEMU is None, reason="needs qemu-x86_64 (apt-get install qemu-user)")
FOR_MINUTES = pytest.mark.nightly("QEMU emulates a CPU, for minutes; make test-ci compares the operators with it")
# QEMU 7.2 crashes now and then when a program has several threads, or computes for ever. A stage takes 25 s of CPU.
ATTEMPTS, CPU_SECONDS = 10, 250
SMALL: dict[str, Any] = {
    "data__source": "synthetic", "data__synthetic__count": 50, "data__synthetic__size": 40, "prepare__size": 40,
    "train__arithmetic": "portable", "train__epochs": 1, "train__batch_size": 20, "train__optimizer": "adamw",
    "train__lr": 0.001, "train__mixup": 0.2, "run__workers": 1, "run__timeout_seconds": 100_000,
}  # fmt: skip
WHOLE: dict[str, Any] = SOLVED | {
    "data__source": "folder", "paths__inbox": str(PHOTOS), "split__stratify": True, "train__parallel": "single",
    "train__model": "exact/tf_efficientnet_lite0", "prepare__size": 72, "prepare__fit": "crop", "train__eval_crop": 64,
    "train__eval_resize": 72, "evaluate__onnx": False, "run__workers": 1,
}  # fmt: skip
# Emulated, the imports take a minute. So one process does them, and forks itself for each command.
COMMANDS = f"""
import json, os, resource, runpy, sys, IMPORTS
for line in sys.stdin:
    folder, words = json.loads(line)
    if (pid := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS}))  # then Linux kills it
        os.chdir(folder)
        said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1), os.dup2(said, 2)
        sys.argv = words
        try:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code or 0
        else:
            status = 0
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Computer:
    """Commands of the program on a CPU. `before`: the command that emulates the CPU."""

    def __init__(
        self,
        *before: str,
        imports: str = "pipeline.stages.evaluate, pipeline.stages.train",
        arithmetic: Arithmetic = "portable",
    ) -> None:
        environ = {**os.environ, **environment.required_variables(1, True, arithmetic)}
        self._process = subprocess.Popen(
            [*before, sys.executable, "-c", COMMANDS.replace("IMPORTS", imports)], cwd=PROJECT, env=environ, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def python(self, folder: Path, *words: str) -> str:
        """Run a module in the folder; what it prints."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for _ in range(ATTEMPTS):
            self._process.stdin.write(f"{json.dumps([str(folder), words])}\n")
            self._process.stdin.flush()
            status, said = int(self._process.stdout.readline()), (folder / "said").read_text()
            if status != -signal.SIGKILL and "uncaught target signal" not in said:
                break
            print(f"{words}: {status}: {said[-300:]}")
        assert status == 0, said
        return said

    def run(self, folder: Path, *stages: str) -> None:
        """Run stages in the folder. Of a launcher: its process. Without a solved head, features starts none."""
        is_solved = params.load(folder / "params.yaml").train.head != "trained"
        ranks = {"train", "evaluate"} | ({"features"} if is_solved else set())
        for name in stages:
            self.python(folder, "pipeline", *(["rank"] if name in ranks else []), name)


@needs_qemu
@FOR_MINUTES
@pytest.mark.parametrize(
    ("settings", "cpu", "last"),
    [(SMALL, "Haswell", "report"), (SMALL, "EPYC-Rome", "evaluate"), (WHOLE, "Haswell", "report")],
    ids=["Intel", "AMD", "whole numbers"],
)
def test_an_emulated_cpu_writes_the_same_bytes(settings: dict[str, Any], cpu: str, last: str, tmp_path: Path) -> None:
    """Every output, and the probabilities that predict prints. MKL takes other code for a CPU of AMD.

    A network of whole numbers needs no portable arithmetic. The export is not emulated: it takes minutes there, and
    computes nothing (evaluation/onnx_export.py).
    """
    native, emulated = (stages_folder(tmp_path / name, **settings) for name in ("native", "emulated"))
    arithmetic = params.load(native / "params.yaml").train.arithmetic
    stages = workspace.STAGES[: workspace.STAGES.index(last) + 1]
    outputs = [name for stage in stages for name in workspace.declared(stage)]
    with Computer(arithmetic=arithmetic) as here, Computer(str(QEMU), "-cpu", cpu, arithmetic=arithmetic) as other:
        for stage in stages:
            here.run(native, stage)
            (here if stage == "export" else other).run(emulated, stage)
        question = ("pipeline", "predict", "--json", str(min(PHOTOS.glob("daisy/*.jpg"))))
        answers = [here.python(native, *question), other.python(emulated, *question)]
    assert all((native / name).exists() for name in outputs)
    assert digests(emulated, *outputs) == digests(native, *outputs)
    assert answers[0] == answers[1]
    assert '"probability": 0.' in answers[0]


# The SHA-256 of all that an emulated Haswell computes there. New versions of the libraries may need a new one.
OF_HASWELL = "63a137209527a7a8ef9610fd21145a89e294ac6c6beeda7b0c03e90254a04b84"


@pytest.mark.slow("a real start of torch with portable arithmetic; make test refuses what cannot be portable")
@pytest.mark.parametrize(
    "before", [(), pytest.param((str(QEMU), "-cpu", "Haswell"), marks=[FOR_MINUTES, needs_qemu])], ids=["here", "QEMU"]
)
def test_every_operator_computes_what_a_haswell_computes(before: tuple[str, ...], tmp_path: Path) -> None:
    """Each operator of a training step alone, forward and backward, in both memory formats.

    No model calls another one that computes: test_network.py.
    """
    with Computer(*before, imports="pipeline.learning.loss") as computer:
        hashes = json.loads(computer.python(tmp_path, "tests.ranks.operators"))["hashes"]
    assert len(hashes) == 64
    assert hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest() == OF_HASWELL, hashes


def test_predict_computes_with_the_threads_of_the_params(with_onnx: Path, tmp_path: Path) -> None:
    """Their number changes the last bits. By default torch takes no more than there are cores."""
    folder = shutil.copytree(with_onnx, tmp_path / "threads")
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    threads, model = (os.cpu_count() or 1) + 1, folder / "models/model.json"
    files.write_json(model, json.loads(model.read_bytes()) | {"arithmetic": "portable"})
    set_params(folder, train__threads=threads)
    config = below(folder, params.load(folder / "params.yaml"))
    request = Request((min((folder / "data/images").rglob("*.png")),), folder / "models/model.safetensors")
    try:
        assert len(list(classify.answers(request, config, list[UserError]()))) == 1
        assert torch.get_num_threads() == threads
    finally:
        determinism.make_deterministic(*before)


def test_a_portable_model_is_refused_by_an_older_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU of 2012, one of today, and one that is not an x86: what it lacks is read from its flags."""
    described = Description("resnet18", ("a", "b"), View(40, 36, 32), (0.5,) * 3, (0.5,) * 3, "last", 1, "portable")
    exported.save(tmp_path, {"a": torch.zeros(1)}, described)
    for flags, lacking in (("fpu sse4_2 avx", ("AVX2", "FMA")), ("fpu avx avx2 fma", ())):
        text = f"processor: 0\nflags\t\t: {flags}\nbogomips: 1\n"
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", lambda path, text=text: text)
            assert machine.missing_cpu_features() == lacking
    assert variables.usable_arithmetic(tmp_path) == "portable"
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with refuses((tmp_path / "model.json", "machine")):
        variables.usable_arithmetic(tmp_path)


def test_a_portable_run_may_go_on_on_another_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint names no kind of CPU. A native one does."""

    def hardware() -> dict[str, dict[str, str]]:
        return {how: provenance.hardware(ALONE, 1, how) for how in ("native", "portable")}

    here = hardware()
    monkeypatch.setattr(machine, "cpu_name", lambda: "Another CPU")
    there = hardware()
    assert here["native"]["device"] != there["native"]["device"] == "Another CPU"
    assert here["portable"] == there["portable"]
