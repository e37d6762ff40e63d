"""The tests of tests/gpu run, report and go on as documented, as far as a machine without a GPU can show it."""

import json
import os
import signal
import subprocess
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest

from benchmarks.speed import gpu
from pipeline.checks import machine
from pipeline.learning.world import World
from tests.conftest import PROJECT
from tests.gpu import conftest, ranks
from tests.gpu.ranks import Case, Result
from tests.gpu.training import Figures
from tests.helpers import starts

pytestmark = pytest.mark.slow("runs whole benchmarks on the CPU; make test has their tables and their records")

FOLDER = PROJECT / "tests/gpu"
NO_GPU = machine.Machine(cuda_devices=0, apex="missing", compiler=True)


class Listener:
    """The tests that a run of pytest collects, and their outcomes."""

    def __init__(self) -> None:
        self.items: list[pytest.Function] = []
        self.outcomes: dict[str, str] = {}
        self.interrupted = threading.Event()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = [item for item in session.items if isinstance(item, pytest.Function)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.outcomes[report.nodeid.rpartition("::")[2]] = report.outcome

    def pytest_keyboard_interrupt(self) -> None:
        self.interrupted.set()


def run(*options: str, listener: Listener | None = None) -> tuple[int, Listener]:
    """Run pytest on tests/gpu, in this process, which has imported torch already."""
    listener = listener or Listener()
    words = [str(FOLDER), "--confcutdir", str(FOLDER), "-o", "addopts=", "-p", "no:cacheprovider", *options]
    return int(pytest.main(words, [listener])), listener


class Forked:
    """A rank as subprocess.Popen starts it, but forked."""

    def __init__(self, command: list[str], env: dict[str, str], cwd: Path, stdout: IO[str], **_: object) -> None:
        self._process = starts.fork(command, env, cwd, Path(stdout.name), Path(stdout.name))

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a rank", timeout or 0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pytest that a test runs has no options of the one that runs the test, and no Apex. Its ranks are forked."""
    for name in ("PYTEST_ADDOPTS", "APEX_SRC"):
        monkeypatch.delenv(name, raising=False)
    forking = SimpleNamespace(Popen=Forked, STDOUT=subprocess.STDOUT, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(ranks, "subprocess", forking)


def test_the_dry_run_shows_what_a_cpu_can_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Native cases run on two ranks, the others are listed with what they need, and a second start goes on."""
    options = ["--gpu-device", "cpu", "--gpu-report", str(tmp_path), "-rs", "-k", "accumulation and fp32"]
    ddp, apex_ddp = "test_accumulation[fp32-ddp]", "test_accumulation[fp32-apex_ddp]"
    status, listener = run(*options)
    assert (status, listener.outcomes) == (0, {ddp: "passed", apex_ddp: "skipped"})
    path = tmp_path / "gpu_tests_cpu.json"
    report = json.loads(path.read_text())
    assert {"cpu", "cores", "gpus", "versions", "commit", "code", "apex_commit_pinned"} <= report["conditions"].keys()
    ran, skipped = (report["cases"][f"tests/gpu/test_parallel.py::{name}"] for name in (ddp, apex_ddp))
    assert (ran["outcome"], ran["warnings"], ran["figures"]["difference"] < 1e-4) == ("passed", [], True)
    assert (skipped["outcome"], skipped["reason"]) == ("skipped", "needs a GPU and Apex with its extensions")
    ran |= {"outcome": "failed", "reason": "a reason"}
    skipped["reason"] = "an old reason"
    path.write_text(json.dumps(report))
    status, listener = run(*options)  # what ran is not run again, and named if it failed; what was skipped is tried
    assert (status, listener.outcomes) == (1, {ddp: "failed", apex_ddp: "skipped"})
    said = capsys.readouterr().out
    assert "a reason" in said
    assert "an old reason" not in said
    path.write_text('{"conditions": {}, "cases": {}}')
    assert run(*options)[0] == pytest.ExitCode.USAGE_ERROR  # a report of another machine


def test_a_cut_keeps_every_result_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt comes before the first case ends: the report has the others; a second start goes on."""
    monkeypatch.setattr(conftest, "CORES_A_CASE", 0.5)  # a CPU has threads for two cases or more
    options = ("--gpu-device", "cpu", "--gpu-report", str(tmp_path), "-k", "test_accumulation")
    path, listener = tmp_path / "gpu_tests_cpu.json", Listener()
    calls: list[str] = []
    passed: Result = {"outcome": "passed", "figures": {}, "warnings": []}

    def prove(case: Case, device: str) -> Result:
        name = "-".join(case.arguments.values())
        calls.append(name)
        if name != calls[0] or len(calls) > len(listener.items):
            return passed.copy()
        while len(cases_of(path)) < len(listener.items) - 1:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        listener.interrupted.wait()
        return {"outcome": "failed", "reason": "a rank has been interrupted"}

    monkeypatch.setattr(ranks, "prove", prove)
    status, _ = run(*options, listener=listener)
    assert status == pytest.ExitCode.INTERRUPTED
    assert len(listener.items) > 2
    assert cases_of(path) == {item.nodeid for item in listener.items[1:]}

    status, again = run(*options)
    assert (status, calls[len(listener.items) :]) == (0, calls[:1])
    assert set(again.outcomes.values()) == {"passed"}
    assert cases_of(path) == {item.nodeid for item in listener.items}


def cases_of(path: Path) -> set[str]:
    """The names of the cases in a report."""
    return set(json.loads(path.read_text())["cases"]) if path.exists() else set()


def test_without_a_gpu_every_test_is_skipped_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parts of the GPU command leave out no case; the compiler is needed by the second part alone."""
    monkeypatch.setattr(machine, "read", lambda: NO_GPU)
    status, listener = run("-rs")
    assert (status, set(listener.outcomes.values())) == (0, {"skipped"})
    assert len(listener.outcomes) == len(listener.items) > 70
    assert capsys.readouterr().out.count("SKIPPED") == 4  # a GPU or two, with Apex or without
    every = {item.nodeid: conftest.case(item) for item in listener.items}
    early, late = (
        {item.nodeid for item in run("--collect-only", "-q", *gpu.TESTS[part])[1].items}
        for part in ("tests", "compiled_tests")
    )
    assert early | late == every.keys()
    assert late == {name for name, case in every.items() if case.needs == "compiler"}
    assert not early & late


def breaks(world: World) -> Figures:
    """A case that fails."""
    raise AssertionError("the loss falls")


def warns(world: World) -> Figures:
    """A case that passes with a warning."""
    warnings.warn("this will end badly", stacklevel=1)
    return {"figure": 1.0}


def hangs(world: World) -> Figures:
    """A case that does not end."""
    time.sleep(1000)
    return {}


def test_a_broken_promise_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed case's reason is the last line of its output. A warning fails a case. A case that hangs is ended."""
    broken = ranks.prove(ranks.case(__name__, breaks.__name__, {}), "cpu")
    assert broken["outcome"] == "failed"
    assert broken["reason"].endswith("AssertionError: the loss falls")
    assert "Traceback" in broken["output"]
    warned = ranks.prove(ranks.case(__name__, warns.__name__, {}), "cpu")
    assert (warned["outcome"], warned["reason"]) == ("failed", "warned: UserWarning: this will end badly")
    assert warned["figures"] == {"figure": 1.0}
    monkeypatch.setitem(ranks.LIMIT_SECONDS, "cpu", 0)
    hung = ranks.prove(ranks.case(__name__, hangs.__name__, {}), "cpu")
    assert (hung["outcome"], hung["reason"]) == ("failed", "more than 0 s; it printed nothing")
