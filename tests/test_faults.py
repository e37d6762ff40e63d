"""Single file operations of real stages fail, or the process is killed: a sample of `python -m tests.faults.faults`."""

import shutil

import pytest

from benchmarks.harness import workspace
from tests.conftest import PROJECT
from tests.faults import faults, watched_run

needs_a_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: cc")


@needs_a_compiler
def test_a_failed_operation_costs_a_line_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """In split and prepare: no traceback, no partial output, no unreported file; the next run leaves no trace of it."""
    monkeypatch.chdir(PROJECT)
    with faults.workers() as process:
        for stage, error, every in (("split", "EIO", 6), ("split", "KILL", 10), ("prepare", "EROFS", 16)):
            row = process.ask(stage=stage, error=error, every=every)
            assert row["tried"] > 2
            assert {name: row[name] for name in faults.COUNTED} == dict.fromkeys(faults.COUNTED, 0), row["descriptions"]


def test_the_kill_sweep_knows_what_each_stage_writes() -> None:
    """A moment of the sweep is the one at which a stage writes this file."""
    assert set(watched_run.OUTPUTS) == set(workspace.STAGES)
