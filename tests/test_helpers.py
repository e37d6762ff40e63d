"""Forked starts of Python, which most tests use, behave like real ones."""

import io
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import in_part, pytest_collection_modifyitems, pytest_configure
from tests.helpers import budget, starts
from tests.helpers.trainings import outputs, small_world, wait_for

TRAIN = [sys.executable, "-m", "pipeline", "train"]
SAY = """
import io, os, sys
assert type(sys.stdout) is type(sys.stderr) is io.TextIOWrapper
print(os.getpid(), os.getsid(0), os.getcwd(), sys.argv, sys.path[0], os.environ.get("WORD"), sys.stdin.read())
entries = open("/proc/self/environ").read().strip("\\0").split("\\0")
assert dict(entry.split("=", 1) for entry in entries) == dict(os.environ), entries
print("an error", file=sys.stderr)
raise SystemExit(7)
"""


@pytest.mark.slow("real starts of three processes; make test has forked ones")
def test_forked_processes_write_the_bytes_of_started_ones(tmp_path: Path) -> None:
    """A launcher and two processes: real starts, forks by torchrun's agent, and forks by multiprocessing's spawn."""
    results = []
    for name in ("started", "torchrun", "spawn"):
        launcher = "spawn" if name == "spawn" else "torchrun"
        folder = small_world(tmp_path / name, train__parallel="ddp", run__processes=2, run__launcher=launcher)
        if name == "started":
            done = subprocess.run(TRAIN, cwd=folder, capture_output=True, text=True, check=False)
        else:
            done = starts.run(TRAIN, ranks=2, cwd=folder)
        assert done.returncode == 0, done.stderr
        results.append((outputs(folder), done.stdout, done.stderr))
    assert results[0] == results[1] == results[2]


def test_a_forked_process_is_one_of_its_own(tmp_path: Path) -> None:
    """It has its own PID, and the requested session, folder, arguments, environment, streams and exit status."""
    command, environ, pipe = [sys.executable, "-c", SAY, "one", 2], {**os.environ, "WORD": "a word"}, subprocess.PIPE
    with starts.Popen(
        command, cwd=tmp_path, env=environ, start_new_session=True, stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        assert process.pid not in (os.getpid(), psutil.Process(process.pid).ppid())
        output, error = process.communicate("input")
    assert output == f"{process.pid} {process.pid} {tmp_path} ['-c', 'one', '2']  a word input\n"
    assert (error, process.returncode) == ("an error\n", 7)


def test_a_forked_process_imports_the_project_from_where_it_is(tmp_path: Path) -> None:
    """It does not use the modules that the server has imported."""
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline/__init__.py").write_text("")
    (tmp_path / "pipeline/__main__.py").write_text("import torch, pipeline; print(pipeline.__file__)")
    done = starts.run([sys.executable, "-m", "pipeline", "rank", "train"], cwd=tmp_path, check=True)
    assert done.stdout == f"{tmp_path}/pipeline/__init__.py\n"


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "PYTHONHASHSEED", "PERENNIAL_REAL_STARTS"])
def test_what_is_read_at_the_start_takes_a_real_one(name: str) -> None:
    """If the environment has such a variable, or if real starts are requested, the start is real."""
    ask = [sys.executable, "-c", "import sys; print('torch' in sys.modules)"]
    assert starts.run(ask, env={**os.environ, name: "1"}, check=True).stdout == "False\n"
    assert starts.run(ask, check=True).stdout == "True\n"


def test_a_process_that_crashes_may_write_no_core_file() -> None:
    """Neither a started process nor a forked one, where the system allows it. With torch it has gigabytes."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    pytest_configure()
    ask = [sys.executable, "-c", "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0])"]
    assert subprocess.check_output(ask, text=True) == "0\n"
    assert starts.run(ask, check=True).stdout == "0\n"


def test_a_killed_server_is_started_again() -> None:
    """As after a test that took too long: the processes that it had started are killed with it."""
    waiting = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with starts.Popen(waiting) as process:
        for child in psutil.Process().children(recursive=True):
            child.kill()
        assert process.wait(600) == -signal.SIGKILL
    assert starts.run([sys.executable, "-c", "print(1)"], check=True).stdout == "1\n"


ASK = """
import os, psutil, subprocess, sys, time
print(os.getpid(), os.getcwd(), "torch" in sys.modules, *psutil.Process().cmdline(), flush=True)
if sys.argv[1] == "start":
    sys.exit(subprocess.run([sys.executable, "-m", "ask", "end"], check=False).returncode + 1)
if sys.argv[1] == "wait":
    time.sleep(1000)
sys.exit(3)
"""


def program(folder: Path, word: str, **environ: str) -> subprocess.Popen[str]:
    """A process that prints what it is, in a folder; then it starts another one, waits, or ends with 3."""
    (folder / "ask.py").write_text(ASK)
    command, variables = starts.in_programs([sys.executable, "-m", "ask", word], {**os.environ, **environ})
    return subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True)


def test_what_a_program_starts_is_forked_too(tmp_path: Path) -> None:
    """Both have the folder, the arguments, the output and a command in /proc; the exit status comes back."""
    with program(tmp_path, "start") as process:
        output, _ = process.communicate()
    assert process.returncode == 4
    lines = [line.split(" ", 1) for line in output.splitlines()]
    assert [line[1] for line in lines] == [f"{tmp_path} True python -m ask {word}" for word in ("start", "end")]
    assert len({process.pid, *(int(line[0]) for line in lines)}) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("target", ["program", "process"])
def test_a_program_and_its_process_end_together(tmp_path: Path, target: str, number: signal.Signals) -> None:
    """By a signal to either of them."""
    with program(tmp_path, "wait") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline().split()[0])
        forked = psutil.Process(pid)
        os.kill(pid if target == "process" else process.pid, number)
        assert process.wait(600) == -number
        wait_for(lambda: not forked.is_running(), "it goes on")


def test_a_program_with_other_variables_is_a_real_python(tmp_path: Path) -> None:
    """Libraries read them at their start."""
    with program(tmp_path, "end", ATEN_CPU_CAPABILITY="default") as process:
        output, _ = process.communicate()
    assert process.returncode == 3
    assert " False " in output


def test_a_test_is_in_one_part_of_the_night() -> None:
    """The parts of any number of parts are all tests, each of them once, and none is empty."""
    tests = [f"tests/test_a.py::test_{number}" for number in range(400)]
    for of in (1, 3, 8):
        parts = [[test for test in tests if in_part(test, f"{which}/{of}")] for which in range(1, of + 1)]
        assert sorted(test for part in parts for test in part) == sorted(tests)
        assert all(parts)


@pytest.mark.parametrize("part", ["0/8", "9/8", "8", "1/0", "a/b"])
def test_a_part_that_is_none_is_refused(
    part: str, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the night would run no test, and pass."""
    monkeypatch.setattr(pytestconfig.option, "part", part)
    with pytest.raises(pytest.UsageError, match=f"--part: {part} "):
        pytest_collection_modifyitems(pytestconfig, [])


def test_steps_of_a_program_are_recorded_beside_the_tests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --write the record has them; the next run shows them, and changes nothing."""
    monkeypatch.setattr(budget, "RECORDED", tmp_path / "budget.json")
    budget.write({"not slow": {"tests/test_a.py": 3.0}})
    for seconds, options in ((10, ["--write"]), (25, [])):
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{seconds} the image\n5 a run inside\n"))
        budget.main("image-test", *options)
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[-2:]] == [["5", "5"], ["30", "15"]]
    assert budget.records() == {
        "image-test": {"the image": 10.0, "a run inside": 5.0}, "not slow": {"tests/test_a.py": 3.0},
    }  # fmt: skip
