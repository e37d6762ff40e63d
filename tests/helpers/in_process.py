"""`perennial repro` in this process, on a pipeline of small stages, and the stages in this process, too."""

import logging
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from pipeline.base import linux
from pipeline.commands import repro
from pipeline.data import corrections
from tests.conftest import on_cpu, read_params, write_params

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


def commit() -> None:
    """Commit everything in the working folder."""
    for words in (
        ["add", "--all"],
        ["-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-qm", "State"],
    ):
        subprocess.run(["git", *words], check=True)


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], list[str]]:
    """`perennial repro` in this process: the exit status, and the lines of stdout and stderr."""
    capfd.readouterr()
    for handler in logging.getLogger("dvc").handlers:  # DVC has taken what was sys.stdout when it was imported
        assert isinstance(handler, logging.StreamHandler)
        handler.stream = sys.stderr if handler.level == logging.WARNING else sys.stdout
    try:
        status = repro.main(Namespace(arguments=[*words], below=""))
    except SystemExit as end:
        status = int(end.code or 0)
    told = capfd.readouterr()
    return status, told.out.splitlines(), told.err.splitlines()
