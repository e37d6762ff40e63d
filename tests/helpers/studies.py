"""Studies and sweeps that run in work copies, to be watched and killed."""

import re
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import workspace
from pipeline.studies import runner


def start(project: Path, *words: str) -> subprocess.Popen[bytes]:
    """`perennial <words>`, which runs. What it says goes to the file `said` beside the project."""
    with (project.parent / "said").open("w") as log:
        command = [sys.executable, "-m", "pipeline", *words]
        environ = workspace.environment(project.parent)
        return subprocess.Popen(command, cwd=project, env=environ, stdout=log, stderr=log)


def copies_at(copies: Path, epoch: int) -> list[Path]:
    """The work copies below a folder whose log has this epoch or a later one."""
    logs = copies.glob(f"*/{runner.LOG}")
    return [log.parent for log in logs if any(int(k) >= epoch for k in re.findall(r"epoch (\d+)/", log.read_text()))]


def remove_logs(copies: Path) -> None:
    """Remove the logs of the start before."""
    for log in copies.glob(f"*/{runner.LOG}"):
        log.unlink()
