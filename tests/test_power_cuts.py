"""Power cuts of a real disk: see tests/faults/power_cuts.py. test_damage.py has single kinds of damage."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.faults import power_cuts


def test_where_nothing_can_be_mounted_the_reason_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is cut, and the exit status is 0."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["power_cuts"])
    assert power_cuts.main() == 0
    assert capsys.readouterr().out == "power_cuts: left out: it needs root, to mount a disk in a file\n"


@pytest.mark.nightly("three runs of the pipeline on a mounted disk, and one after each cut: minutes")
def test_one_run_after_a_power_cut_ends_with_the_right_bytes(tmp_path: Path) -> None:
    """One cut during the pipeline, four after its end, two after the end of `dvc repro` alone."""
    if reason := power_cuts.why_not():
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.faults.power_cuts", "--cuts", "7", "--out", str(tmp_path / "cuts.json")]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "cuts.json").read_text())["summary"]
    assert figures["cuts"] == 7
    assert (figures["wrong"], figures["lost"], figures["rounds_of_errors"]) == (0, 0, 0)
