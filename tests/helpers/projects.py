"""Copies of the project with params of their own, for what needs a repository: DVC, and git."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import PROJECT, change, on_cpu, read_params, write_params


def copy_project(folder: Path, **changes: Any) -> Path:
    """The project's files as they are now, in a repository of their own, with a CPU-sized training."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in listed:
        if name and (PROJECT / name).is_file() and not name.startswith(("tests/", "docs/", "results/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, folder / name, follow_symlinks=False)
    (folder / "pipeline/loader/__pycache__").mkdir()
    for compiled in PROJECT.glob("pipeline/loader/__pycache__/*.nb?"):  # by numba, which goes by the hash of the source
        shutil.copy2(compiled, folder / "pipeline/loader/__pycache__")
    write_params(folder / "params.yaml", change(on_cpu(read_params()), **changes))
    call(folder, "git", "init", "--quiet")
    call(folder, "git", "add", "--all")
    call(folder, "git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "-m", "Copy")
    return folder


def call(folder: Path, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A command in the copy, with this environment's programs and none of this checkout's modules."""
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environ.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done
