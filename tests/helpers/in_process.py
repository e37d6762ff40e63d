"""`perennial repro` in this process, on a pipeline of small stages, and the stages in this process, too."""

import logging
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from dvc.stage.exceptions import StageCmdFailedError
from tqdm import tqdm

from pipeline.__main__ import LAUNCHED
from pipeline.base import linux
from pipeline.commands import repro
from pipeline.data import corrections
from pipeline.learning.environment import required_variables
from pipeline.running import launchers
from pipeline.versioning.in_process import Run
from tests.conftest import on_cpu, read_params, write_params
from tests.helpers import starts

PIPELINE = """
stages:
  one:
    cmd: exec {python} stage.py one
    deps: [given]
    outs: [one]
  two:
    cmd: exec {python} stage.py two
    deps: [one]
    params: [train.lr]
    outs: [two]
"""
# A stage that ends as the file `how` says. Like training, it needs time to save when it is interrupted.
STAGE = """
import ctypes, os, signal, sys, time
from pathlib import Path
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
def save(number, _):
    signal.signal(number, signal.SIG_IGN)
    time.sleep(0.5)
    Path("saved").write_text(str(number))
    sys.exit(75)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, save)
name, how = sys.argv[1], Path("how").read_text() if Path("how").exists() else ""
print(f"{name}: begins; {os.isatty(1)}, {os.isatty(2)}", flush=True)
if how == f"{name} waits":
    Path("began").touch()
    time.sleep(600)
if how == f"{name} is killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == f"{name} fails":
    sys.exit(f"{name}: refused")
Path(name).write_text(name)
"""


def create_small(folder: Path) -> Path:
    """A repository of Git and DVC with two small stages."""
    (folder / "data").mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], cwd=folder, check=True)
    (folder / "dvc.yaml").write_text(PIPELINE.format(python=sys.executable))
    (folder / "stage.py").write_text(STAGE)
    (folder / "given").write_text("given")
    (folder / "data/corrections.csv").write_text(corrections.EMPTY)
    write_params(folder / "params.yaml", on_cpu(read_params()))
    return folder


def enter_copy(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a repository as the working folder."""
    folder = shutil.copytree(source, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    monkeypatch.setattr(linux, "adopt_orphans", lambda: None)  # they would be those of all later tests
    return folder


def fork_stages(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Go to a folder, and let runs of DVC in this process fork their stages, without launchers (starts.py)."""

    def run_command(self: Run, executable: str, command: str, **options: Any) -> None:
        self.show_skipped()
        self.has_command = True
        words, environ = ["-m", *command.split()[command.split().index("-m") + 1 :]], dict(options["env"])
        is_ranked = words[-1] in LAUNCHED and (
            words[-1] != "features" or read_params(Path("params.yaml"))["train"]["head"] == "solved"
        )
        if is_ranked and starts.can_fork(environ):
            words.insert(2, "rank")
            environ |= {**launchers.ALONE, **required_variables(1, True)}
        done = starts.run([sys.executable, *words], cwd=Path(options["cwd"]), env=environ)
        print(done.stdout, done.stderr)
        if done.returncode:
            self.failed[self.stage] = done.returncode
            raise StageCmdFailedError(command, done.returncode)

    monkeypatch.chdir(folder)
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(folder.parent / "site"))
    monkeypatch.setattr(tqdm, "display", tqdm.display)  # a run changes it
    monkeypatch.setattr(Run, "run_command", run_command)
    monkeypatch.setattr(linux, "adopt_orphans", lambda: None)  # they would be those of all later tests


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], list[str]]:
    """`perennial repro` in this process: the exit status, and the lines of stdout and stderr."""
    capfd.readouterr()
    status = start(*words)
    told = capfd.readouterr()
    return status, told.out.splitlines(), told.err.splitlines()


def run_forked(folder: Path, *words: str) -> None:
    """`perennial repro` in this process in a folder, with forked stages. It must not fail."""
    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ):
        fork_stages(patch, folder)
        assert start(*words) == 0


def start(*words: str) -> int:
    """`perennial repro` in this process: the exit status."""
    for handler in logging.getLogger("dvc").handlers:  # DVC has taken what was sys.stdout when it was imported
        assert isinstance(handler, logging.StreamHandler)
        handler.stream = sys.stderr if handler.level == logging.WARNING else sys.stdout
    try:
        return repro.main(Namespace(arguments=[*words], below=""))
    except SystemExit as end:
        return int(end.code or 0)
