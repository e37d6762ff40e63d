"""Single file operations of real stages fail, or end the process: a sample of `python -m benchmarks faults`."""

import shutil
from pathlib import Path

import pytest

from benchmarks.faults import faults
from tests.conftest import PROJECT

needs_a_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: cc")


@needs_a_compiler
def test_a_failed_operation_costs_a_line_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """In split and prepare: no traceback, no half output, nothing unnamed, and the next run is an unhindered one's."""
    monkeypatch.chdir(PROJECT)
    with faults.workers() as striking:
        for stage, error, every in (("split", "EIO", 3), ("split", "KILL", 5), ("prepare", "EROFS", 8)):
            row = striking.ask(stage=stage, error=error, every=every)
            assert row["tried"] > 2
            assert {name: row[name] for name in faults.COUNTED} == dict.fromkeys(faults.COUNTED, 0), row["said"]


def test_a_stage_that_cannot_end_well_is_counted(tmp_path: Path) -> None:
    """The digests see a changed byte, a file too many, and an output that is away."""
    (tmp_path / "data/images").mkdir(parents=True)
    before = faults.outputs(tmp_path, "download")
    (tmp_path / "data/images/1.png").write_text("1")
    one = faults.outputs(tmp_path, "download")
    (tmp_path / "data/images/1.png").write_text("2")
    other = faults.outputs(tmp_path, "download")
    assert len({str(found) for found in (before, one, other)}) == 3
    assert before["data/weights/"] == ""
    (tmp_path / "data/.images.partial").mkdir()
    assert faults.hidden(tmp_path) == [Path("data/.images.partial")]
    assert "data/.images.partial" in faults.names(tmp_path)
