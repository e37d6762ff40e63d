"""Single file operations of real stages fail, or the process is killed: a sample of `python -m tests.faults.faults`."""

import shutil

import pytest

from benchmarks.harness import workspace
from tests.conftest import PROJECT
from tests.faults import faults, kill_sweep

needs_a_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: cc")


FEW = [("split", "EIO", 6), ("split", "KILL", 10), ("prepare", "EROFS", 16), ("prepare", "KILL", 16)]
MANY = [(stage, error, 25) for stage in workspace.STAGES for error in ("KILL", "ENOSPC", "EROFS")]
EVERY_STAGE = pytest.mark.nightly("two runs for each of about eighty faults: minutes; make test has two stages")


@needs_a_compiler
@pytest.mark.parametrize("turns", [FEW, pytest.param(MANY, marks=EVERY_STAGE)], ids=len)
def test_a_failed_operation_costs_a_line_and_nothing_else(
    turns: list[tuple[str, str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback, no partial output, no unreported file; the next run leaves no trace of it."""
    monkeypatch.chdir(PROJECT)
    with faults.workers() as process:
        for stage, error, every in turns:
            row = process.ask(stage=stage, error=error, every=every)
            assert row["tried"] > (2 if turns is FEW else 0)
            assert {name: row[name] for name in faults.COUNTED} == dict.fromkeys(faults.COUNTED, 0), row["descriptions"]


def test_the_kill_sweep_knows_what_each_stage_writes() -> None:
    """A moment of the sweep is the one at which a stage writes this file."""
    assert set(kill_sweep.OUTPUTS) == set(workspace.STAGES)
