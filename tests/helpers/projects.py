"""Copies of the project under Git, with a CPU-sized training, for tests that need DVC."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import workspace
from pipeline.base import files
from pipeline.data import corrections
from pipeline.versioning import dvc_lock, integrity
from tests.conftest import PROJECT, change, on_cpu, read_params, write_params


def create_project(folder: Path, **changes: Any) -> Path:
    """A commit of the project's files as they are now, in a new repository, with these params (section__key=value).

    Without evaluate.onnx, which takes as long as all other stages.
    """
    workspace.create_repository(folder, source=PROJECT)
    write_params(folder / "params.yaml", change(on_cpu(read_params(), evaluate__onnx=False), **changes))
    commit(folder)
    return folder


def finish_project(folder: Path) -> None:
    """A project on 60 drawn flowers, with the outputs of every stage, committed."""
    from tests.helpers import in_process  # most users of this module need no DVC

    drawn = {"data__source": "synthetic", "data__synthetic": {"count": 60, "size": 40}}
    create_project(folder, **drawn, split__phash_distance=0, train__model="squeezenet1_1", evaluate__onnx=True)
    in_process.run_forked(folder)
    commit(folder)


def stages_folder(folder: Path, **changes: Any) -> Path:
    """A folder without Git in which the stages can run: the code, these params, and no corrections."""
    folder.mkdir(exist_ok=True)
    link_code(folder)
    write_params(folder / "params.yaml", on_cpu(read_params(), **changes))
    files.write_text(folder / corrections.FILE, corrections.EMPTY)
    return folder


def link_code(folder: Path) -> None:
    """Put links to the project's code, dvc.yaml and versions into a folder, for stages that run there without Git."""
    for name in ("pipeline", "requirements", "docker", "dvc.yaml"):
        (folder / name).symlink_to(PROJECT / name)


def call(folder: Path, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command in the copy, with this environment's programs and no module of this checkout."""
    done = workspace.call(folder, *command)
    assert not check or done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done


def commit(folder: Path) -> None:
    """Commit everything in the copy."""
    call(folder, "git", "add", "--all")
    call(folder, "git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "-m", "State")


def verify_environment(project: Path) -> dict[str, str]:
    """Environment variables for `perennial verify` in a project: its work copy is in `temporary`, beside it."""
    environ = {**os.environ, "TMPDIR": str(project.parent / "temporary")}
    environ.pop("PYTHONPATH", None)
    return environ


def verify(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `perennial verify` in the project. In every case its work copy is removed."""
    command = [sys.executable, "-m", "pipeline", "verify", *arguments]
    done = subprocess.run(
        command, cwd=project, env=verify_environment(project), capture_output=True, text=True, check=False
    )
    assert not list((project.parent / "temporary").glob("perennial-*"))
    assert "Traceback" not in done.stderr, done.stderr
    return done


def object_of(project: Path, path: str, inside: str = "") -> Path:
    """The object of an output in DVC's cache, or of a file in it."""
    cache, md5 = project / ".dvc/cache", dvc_lock.outputs(dvc_lock.read(project / "dvc.lock"))[path]
    if inside:
        entries = json.loads(integrity.object_of(cache, md5).read_bytes())
        (md5,) = (entry["md5"] for entry in entries if entry["relpath"] == inside)
    return integrity.object_of(cache, md5)
