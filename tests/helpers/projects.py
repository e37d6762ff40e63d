"""Copies of the project under Git, with a CPU-sized training, for tests that need DVC."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.harness import workspace
from tests.conftest import PROJECT, change, on_cpu, read_params, write_params


def copy_project(folder: Path, **changes: Any) -> Path:
    """A commit of the project's files as they are now, in a new repository, with these params (section__key=value)."""
    workspace.copy_project(folder, source=PROJECT)
    (folder / "pipeline/loader/__pycache__").mkdir()
    for compiled in PROJECT.glob("pipeline/loader/__pycache__/*.nb?"):  # by numba, which compares the source's hash
        shutil.copy2(compiled, folder / "pipeline/loader/__pycache__")
    write_params(folder / "params.yaml", change(on_cpu(read_params()), **changes))
    call(folder, "git", "add", "--all")
    call(folder, "git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "-m", "Copy")
    return folder


def call(folder: Path, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in the copy, with this environment's programs and no module of this checkout."""
    done = workspace.call(folder, *command)
    assert not check or done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done
