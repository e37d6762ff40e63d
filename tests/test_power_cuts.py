"""Power cuts of a real disk. test_damage.py has single kinds of damage."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.faults import power_cuts


@pytest.mark.nightly("three runs of the pipeline on a mounted disk, and one after each cut: minutes")
def test_one_run_after_a_power_cut_ends_with_the_right_bytes(tmp_path: Path) -> None:
    """One cut during the pipeline, four after its end, two after the end of `dvc repro` alone."""
    if reason := power_cuts.why_not():
        pytest.skip(reason)
    command = ["unshare", "--mount", sys.executable, "-m", "tests.faults.power_cuts", str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
