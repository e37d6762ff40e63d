"""Starts Python in tenths of a second, for tests that are not about starting.

    starts.run([sys.executable, "-m", "pipeline", "rank", "train"], cwd=folder)    as subprocess.run, with text
    starts.fork([sys.executable, "-m", "tests.ranks.steps"], environ, cwd, log)    as subprocess.Popen

Importing torch takes longer than a small training. So multiprocessing's fork server imports it once (preloaded.py), and
forks a process for each start, which imports the project from its own folder. The start of the interpreter is not
tested in this way. A start with other variables that reach arithmetic or Python, and each one with
PERENNIAL_REAL_STARTS=1, is a real one.
"""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from pipeline.learning.environment import numeric_variables, required_variables

PROJECT = Path(__file__).resolve().parents[2]
REAL = "PERENNIAL_REAL_STARTS"  # the variable with which every start is a real one
BASE = dict(os.environ)  # of this process, before a test changes it

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.helpers.preloaded"])


def decisive(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python and the libraries read at their start, less those that the fork server has."""
    read = {name: value for name, value in environ.items() if name.startswith(("PYTHON", "LANG", "LC_", "LD_"))}
    usual = required_variables(1, True)
    return {name: value for name, value in (read | numeric_variables(environ)).items() if usual.get(name) != value}


def can_fork(environ: Mapping[str, str]) -> bool:
    """Whether a process with these variables can be forked."""
    return REAL not in environ and decisive(environ) == decisive(BASE)


def _become(words: Sequence[str], environ: Mapping[str, str], cwd: str, logs: Sequence[str]) -> None:
    """Run `python words…` in this forked process, with a file for the output and one for errors."""
    for number, log in enumerate(logs, 1):
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    for name in [name for name in sys.modules if name.split(".")[0] in ("pipeline", "tests", "benchmarks")]:
        del sys.modules[name]
    sys.path.insert(0, cwd)
    sys.argv = [words[0], *words[2:]]
    try:
        if words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()


def fork(words: Sequence[object], environ: Mapping[str, str], cwd: Path, *logs: Path) -> BaseProcess:
    """A forked process for these words, of which the first one is this Python; files for its output and its errors."""
    arguments = [str(word) for word in words[1:]]
    process = _CONTEXT.Process(target=_become, args=(arguments, dict(environ), str(cwd.absolute()), [*map(str, logs)]))
    # Those of the fork server, if this start is its first. It is started again, with a warning, after a test that kills
    # all children of this process.
    with mock.patch.dict(os.environ, {**BASE, **required_variables(1, True)}, clear=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        process.start()
    return process


def run(
    words: Sequence[object], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Start Python and wait for its end: exit status and output."""
    environ = dict(os.environ if env is None else env)
    if not can_fork(environ):
        command = [str(word) for word in words]
        return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=check)
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, name) for name in ("out", "err")]
        process = fork(words, environ, cwd or Path.cwd(), *logs)
        process.join()
        assert process.exitcode is not None
        said = [log.read_text() if log.exists() else "" for log in logs]
    done = subprocess.CompletedProcess([str(word) for word in words], process.exitcode, *said)
    if check:
        done.check_returncode()
    return done


def server_seconds() -> float:
    """CPU seconds of the fork server, and of its processes that have ended."""
    server: Any = forkserver._forkserver
    with suppress(psutil.Error):
        return sum(psutil.Process(server._forkserver_pid).cpu_times()[:4]) if server._forkserver_pid else 0.0
    return 0.0
