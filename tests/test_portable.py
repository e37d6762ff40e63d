"""train.arithmetic: portable gives the same bytes on CPUs of other kinds, which QEMU emulates.

The emulator runs the real pipeline, more than ten times slower. QEMU emulates AVX2 and FMA, and no AVX-512.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import torch

from benchmarks.harness import workspace
from pipeline.base import files
from pipeline.checks import machine, validity
from pipeline.checks.machine import Machine
from pipeline.config import params
from pipeline.config.params import Arithmetic
from pipeline.learning import environment
from pipeline.running import variables
from tests.conftest import PROJECT, change, on_cpu, read_params, set_params
from tests.helpers.projects import stages_folder
from tests.helpers.refusals import refuses
from tests.helpers.trainings import digests

QEMU = shutil.which("qemu-x86_64")
needs_qemu = pytest.mark.skipif(QEMU is None, reason="needs qemu-x86_64 (apt-get install qemu-user)")
HASWELL, ROME = ((str(QEMU), "-cpu", cpu) for cpu in ("Haswell", "EPYC-Rome"))
EMULATED = pytest.mark.slow("QEMU emulates a CPU, for a minute; make test refuses what cannot be portable")
FOR_MINUTES = pytest.mark.nightly("QEMU emulates a CPU, for minutes; make test-ci compares the operators")
OUTPUTS = [name for stage in workspace.STAGES for name in workspace.declared(stage)]
# QEMU 7.2 crashes now and then when a program has several threads, or computes for ever. A stage takes 25 s of CPU.
ATTEMPTS, CPU_SECONDS = 10, 250
SMALL: dict[str, Any] = {
    "data__source": "synthetic", "data__synthetic__count": 50, "data__synthetic__size": 40, "prepare__size": 40,
    "train__arithmetic": "portable", "train__epochs": 1, "train__batch_size": 20, "train__optimizer": "adamw",
    "train__lr": 0.001, "train__mixup": 0.2, "run__workers": 1, "run__timeout_seconds": 100_000,
}  # fmt: skip
ASK = """
from pathlib import Path
import torch
from pipeline.commands import predict
from pipeline.answers import classify
predict.predict(classify.Request((Path("data/images/aster"),)))
print(torch.get_num_threads())
"""


# Emulated, the imports take a minute. So one process does them, and forks itself for each command.
COMMANDS = f"""
import json, os, resource, runpy, sys
import pipeline.stages.evaluate, pipeline.stages.train
for line in sys.stdin:
    folder, words, variables = json.loads(line)
    if (pid := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS}))  # then Linux kills it
        os.chdir(folder)
        os.environ.update(variables)
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

    def __init__(self, *before: str, arithmetic: Arithmetic = "portable") -> None:
        environ = {**os.environ, **environment.required_variables(1, True, arithmetic)}
        self._process = subprocess.Popen(
            [*before, sys.executable, "-c", COMMANDS], cwd=PROJECT, env=environ, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def python(self, folder: Path, *words: str, **variables: str) -> str:
        """Run a module in the folder; what it prints."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for _ in range(ATTEMPTS):
            self._process.stdin.write(f"{json.dumps([str(folder), words, variables])}\n")
            self._process.stdin.flush()
            status, said = int(self._process.stdout.readline()), (folder / "said").read_text()
            if status != -signal.SIGKILL and "uncaught target signal" not in said:
                break
            print(f"{words}: {status}: {said[-300:]}")
        assert status == 0, said
        return said

    def stage(self, folder: Path, name: str, **variables: str) -> None:
        """Run a stage in the folder. Of a launcher: its process."""
        self.python(folder, "pipeline", *(["rank"] if name in ("train", "evaluate") else []), name, **variables)


@pytest.fixture(scope="module")
def here() -> Iterator[Computer]:
    """This machine's CPU."""
    with Computer() as computer:
        yield computer


@pytest.fixture(scope="module")
def haswell() -> Iterator[Computer]:
    """An emulated CPU of Intel."""
    with Computer(*HASWELL) as computer:
        yield computer


@pytest.fixture(scope="module")
def rome() -> Iterator[Computer]:
    """An emulated CPU of AMD: MKL takes other code for it."""
    with Computer(*ROME) as computer:
        yield computer


def project(folder: Path) -> Path:
    """A folder in which the stages can run: 50 drawn images, a small model, two steps."""
    return stages_folder(folder, **SMALL)


def outputs(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file that the stages have written."""
    return digests(folder, *OUTPUTS)


@pytest.fixture(scope="module")
def native(here: Computer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole pipeline on this machine's CPU."""
    folder = project(tmp_path_factory.mktemp("portable") / "native")
    for stage in workspace.STAGES:
        here.stage(folder, stage)
    return folder


@FOR_MINUTES
@needs_qemu
def test_an_emulated_cpu_writes_the_same_bytes(native: Path, here: Computer, haswell: Computer, tmp_path: Path) -> None:
    """From the drawn images to the report, every output is the same; so are the probabilities that predict prints.

    The export is not emulated: it takes minutes there, and computes nothing (evaluation/onnx_export.py).
    """
    folder = project(tmp_path / "emulated")
    for stage in workspace.STAGES:
        (here if stage == "export" else haswell).stage(folder, stage)
    assert all((native / name).exists() for name in OUTPUTS)
    assert outputs(folder) == outputs(native)
    question = ("pipeline", "predict", "--json", "data/images/aster")
    answer = here.python(native, *question)
    assert '"probability": 0.' in answer
    assert haswell.python(folder, *question) == answer


def operators(computer: Computer, folder: Path) -> Any:
    """What `tests.ranks.operators` prints."""
    return json.loads(computer.python(folder, "tests.ranks.operators"))


@EMULATED
@needs_qemu
@pytest.mark.parametrize("name", ["haswell", pytest.param("rome", marks=FOR_MINUTES)])
def test_every_operator_computes_the_same(
    here: Computer, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each operator of a training step alone, forward and backward, in both memory formats.

    No model calls another one that computes: test_network.py.
    """
    hashes, others = (operators(each, tmp_path)["hashes"] for each in (here, request.getfixturevalue(name)))
    assert len(hashes) == 64
    assert others == hashes


@FOR_MINUTES
@needs_qemu
def test_a_cpu_of_another_maker_trains_the_same_model(native: Path, rome: Computer, tmp_path: Path) -> None:
    """The figures of the evaluation are the same, too."""
    folder = project(tmp_path / "emulated")
    for stage in workspace.STAGES[: workspace.STAGES.index("evaluate") + 1]:
        rome.stage(folder, stage)
    results = outputs(folder)
    assert {"models/model.safetensors", "metrics/predictions.csv"} <= results.keys()
    assert results.items() <= outputs(native).items()


@pytest.mark.slow("a real start of Python, which imports torch; make test refuses what cannot be portable")
def test_predict_computes_with_the_threads_of_the_params(finished: Path, tmp_path: Path) -> None:
    """Their number changes the last bits. By default torch takes no more than there are cores, or those it is told."""
    folder = shutil.copytree(finished, tmp_path / "threads", symlinks=True, ignore=shutil.ignore_patterns("cache"))
    model = folder / "models/model.json"
    described = json.loads(model.read_bytes())
    files.remove(model)  # it may share its bytes with DVC's cache
    files.write_json(model, described | {"arithmetic": "portable"})
    files.remove(folder / "dvc.lock")  # it names another model.json
    threads = (os.cpu_count() or 1) + 1
    set_params(folder, train__threads=threads)
    (folder / "ask.py").write_text(ASK)
    asked = subprocess.run([sys.executable, "ask.py"], cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    assert asked.stdout.splitlines()[-1] == str(threads)


@pytest.mark.nightly("runs every stage; make test refuses what cannot be portable")
def test_a_portable_model_is_evaluated_on_no_older_cpu(native: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names the file, what is missing, and two remedies."""
    assert variables.usable_arithmetic(native / "models") == "portable"
    monkeypatch.setattr(machine, "missing_cpu_features", lambda: ("AVX2",))
    with refuses((native / "models/model.json", "machine")):
        variables.usable_arithmetic(native / "models")


@pytest.mark.parametrize(
    ("key", "value"),
    [("device", "cuda"), ("precision", "bf16"), ("precision", "fp16"), ("compile", True), ("deterministic", False)],
)
def test_what_cannot_be_portable_is_refused(key: str, value: object) -> None:
    """With native arithmetic the same choice is accepted."""
    here = Machine(1, "usable", compiler=True, compute_capabilities=((9, 0),), cuda_driver=13, cores=2)
    lines = {"train__arithmetic": "portable", f"train__{key}": value}
    (fault,) = validity.faults(params.parse(change(on_cpu(read_params()), **lines)), here)
    assert (fault.key, fault.kind) == (f"train.{key}", "pair")
    lines["train__arithmetic"] = "native"
    assert not validity.faults(params.parse(change(on_cpu(read_params()), **lines)), here)


def test_what_a_cpu_lacks_is_read_from_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU of 2012, one of today, and one that is not an x86."""
    for flags, lacking in (("fpu sse4_2 avx", ("AVX2", "FMA")), ("fpu avx avx2 fma", ())):
        monkeypatch.setattr(
            Path, "read_text", lambda path, flags=flags: f"processor: 0\nflags\t\t: {flags}\nbogomips: 1\n"
        )
        assert machine.missing_cpu_features() == lacking
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert machine.missing_cpu_features() == ("AVX2", "FMA")


def test_a_portable_run_may_go_on_on_another_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint names no kind of CPU. A native one does."""

    from pipeline.learning.world import World
    from pipeline.running import provenance

    world = World(0, 0, 1, torch.device("cpu"))
    here = {how: provenance.hardware(world, 1, how) for how in ("native", "portable")}
    monkeypatch.setattr(machine, "cpu_name", lambda: "Another CPU")
    there = {how: provenance.hardware(world, 1, how) for how in ("native", "portable")}
    assert here["native"]["device"] != there["native"]["device"] == "Another CPU"
    assert here["portable"] == there["portable"]
