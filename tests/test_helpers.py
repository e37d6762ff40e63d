"""What the tests stand on: forked starts, the parts of the night, the record of CPU seconds."""

import io
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import in_part, pytest_collection_modifyitems, pytest_configure
from tests.helpers import budget, starts

SAY = """
import os, sys
print(os.getcwd(), sys.argv, sys.path[0], os.environ.get("WORD"), "torch" in sys.modules, "pipeline" in sys.modules)
print("an error", file=sys.stderr)
raise SystemExit(7)
"""


def test_a_forked_process_is_one_of_its_own(tmp_path: Path) -> None:
    """It has the requested folder, arguments, environment, output and exit status, and no module of this project."""
    for name, value, is_forked in (("WORD", "a word", True), ("OMP_NUM_THREADS", "7", False), (starts.REAL, "", False)):
        done = starts.run(
            [sys.executable, "-c", SAY, 2], cwd=tmp_path, env={**os.environ, "WORD": "a word", name: value}
        )
        first = tmp_path if is_forked else ""
        assert done.stdout == f"{tmp_path} ['-c', '2'] {first} a word {is_forked} False\n"
        assert (done.stderr, done.returncode) == ("an error\n", 7)


def test_a_process_that_crashes_may_write_no_core_file() -> None:
    """Where the system allows it: with torch it has gigabytes."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    pytest_configure()
    ask = [sys.executable, "-c", "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0])"]
    assert subprocess.check_output(ask, text=True) == "0\n"


def test_a_test_is_in_one_part_of_the_night() -> None:
    """The parts of any number of parts are all tests, each of them once, and none is empty."""
    tests = [f"tests/test_a.py::test_{number}" for number in range(400)]
    for of in (1, 3, 8):
        parts = [[test for test in tests if in_part(test, f"{which}/{of}")] for which in range(1, of + 1)]
        assert sorted(test for part in parts for test in part) == sorted(tests)
        assert all(parts)


def test_a_part_that_is_none_is_refused(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the night would run no test, and pass."""
    for part in ("0/8", "9/8", "8", "1/0", "a/b"):
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
