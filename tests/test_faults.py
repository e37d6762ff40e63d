"""Single file operations of real stages fail, or the process is killed: a sample of `python -m tests.faults.faults`."""

import shutil

import pytest

from benchmarks.harness import workspace
from tests.conftest import PROJECT
from tests.faults import faults

needs_a_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: cc")


# Stage, error, and one fault per so many operations.
FEW = [("split", "EIO", 6), ("split", "KILL", 10), ("prepare", "EROFS", 16), ("prepare", "KILL", 16)]
EVERY = {
    "download": 50, "split": 15, "prepare": 20, "weights": 5, "features": 5,
    "train": 80, "evaluate": 15, "export": 5, "card": 3, "report": 3,
}  # fmt: skip
# A test for each error: all in one need most of the time that a test may take, on a busy machine.
MANY = {error: [(stage, error, every) for stage, every in EVERY.items()] for error in ("KILL", "ENOSPC", "EROFS")}
EVERY_STAGE = pytest.mark.nightly("two runs for each of some thirty faults: minutes; make test-ci has two stages")


@pytest.mark.slow("some hundred starts of a command; make test has the stages that the campaign knows")
@needs_a_compiler
@pytest.mark.parametrize(
    "turns", [FEW, *(pytest.param(turns, marks=EVERY_STAGE) for turns in MANY.values())], ids=["few", *MANY]
)
def test_a_failed_operation_costs_a_line_and_nothing_else(
    turns: list[tuple[str, str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback, no partial output, no unreported file; the next run leaves no trace of it."""
    monkeypatch.chdir(PROJECT)
    with faults.workers() as process:
        for stage, error, every in turns:
            row = process.ask(stage=stage, error=error, every=every)
            assert row["tried"] > 2
            assert {name: row[name] for name in faults.COUNTED} == dict.fromkeys(faults.COUNTED, 0), row["descriptions"]


def test_the_campaign_knows_every_stage() -> None:
    assert set(EVERY) == set(workspace.STAGES)
