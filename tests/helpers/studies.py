"""Studies and sweeps that run in work copies, to be watched and killed."""

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.harness import workspace
from pipeline.studies import runner


def start(project: Path, *words: str) -> subprocess.Popen[bytes]:
    """`perennial <words>`, which runs. What it says goes to the file `said` beside the project."""
    with (project.parent / "said").open("w") as log:
        command = [sys.executable, "-m", "pipeline", *words]
        environ = workspace.environment(project.parent)
        return subprocess.Popen(command, cwd=project, env=environ, stdout=log, stderr=log)


def processes_in(folder: Path, *words: str) -> list[psutil.Process]:
    """The processes in a folder or below it that have all these words in their command."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            is_there = Path(process.cwd()).is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE
            command = process.cmdline()
            if is_there and all(word in command for word in words):
                processes.append(process)
    return processes


def kill(copy: Path, *words: str) -> None:
    """Kill the process in a work copy that has all these words in its command."""
    next(process for process in processes_in(copy, *words) if Path(process.cwd()) == copy).kill()


def copies_at(copies: Path, epoch: int) -> list[Path]:
    """The work copies below a folder whose log has this epoch or a later one."""
    logs = copies.glob(f"*/{runner.LOG}")
    return [log.parent for log in logs if any(int(k) >= epoch for k in re.findall(r"epoch (\d+)/", log.read_text()))]


def remove_logs(copies: Path) -> None:
    """Remove the logs of the start before."""
    for log in copies.glob(f"*/{runner.LOG}"):
        log.unlink()
