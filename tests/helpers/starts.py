"""Starts Python in hundredths of a second, for tests that are not about starting.

    starts.run([sys.executable, "-m", "pipeline", "rank", "train"], cwd=folder)   as subprocess.run, with output
    starts.Popen([sys.executable, "-c", script], env=…, stderr=…)          as subprocess.Popen, with text
    starts.run_with_children(command, folder, environ)     the same for all Python that the command starts

Importing torch takes seconds, longer than a small training. So a server process that has imported it forks a process
for each start (forking.py). The process has its own PID, session, signals, exit status, folder, environment and
streams. It imports this project's modules anew, from its own folder. With `ranks`, a launcher can start this number of
processes in the same way.

Limits: the start of the interpreter and of the libraries is not tested; all processes have the same seed of str's
hashes. tests/faults kills processes that were really started. With PERENNIAL_REAL_STARTS=1 all starts are real.
"""

import atexit
import inspect
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.helpers import forking, program

PROJECT = Path(__file__).resolve().parents[2]
ROOM = {"PERENNIAL_ROOM": 2**16 * "."}  # memory in which a forked process shows its environment in /proc
REAL = "PERENNIAL_REAL_STARTS"  # the variable with which every start is a real one

_one_at_a_time = threading.Lock()
_servers: list[tuple["subprocess.Popen[bytes]", socket.socket, Path]] = []  # at most one; the folder of its programs


def stop() -> None:
    """End the server, if there is one."""
    for process, connection, folder in _servers:
        connection.close()
        process.wait()
        shutil.rmtree(folder)
    _servers.clear()


atexit.register(stop)


def server_seconds() -> float:
    """CPU seconds of the server, and of the processes that it has forked and that have ended. 0 if there is none."""
    with suppress(psutil.NoSuchProcess):
        return sum(sum(psutil.Process(process.pid).cpu_times()[:4]) for process, *_ in _servers)
    return 0.0


def server() -> tuple[socket.socket, Path]:
    """The connection to the server, and the folder of its programs (program.py).

    It is started if it is not running. It ends with this process.
    """
    if any(process.poll() is not None for process, *_ in _servers):  # it was killed with the processes of a test
        stop()
    if not _servers:
        folder = Path(tempfile.mkdtemp(prefix="perennial-forks-"))
        connection, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as programs:
            programs.bind(str(folder / "socket"))
            programs.listen(64)
            fds = [its.fileno(), programs.fileno()]
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.forking", *map(str, fds), *ROOM.values()],
                cwd=PROJECT, env={**os.environ, "PYTHONPATH": str(PROJECT), **forking.AS_LAUNCHED, **ROOM},
                stdin=subprocess.DEVNULL, pass_fds=fds,
            )  # fmt: skip
        python = f"#!{sys.executable} -IS\n{inspect.getsource(program)}"
        for name, text in {"python": python, "dvc": f'#!/bin/sh\nexec {folder}/python -m dvc "$@"\n'}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        _servers.append((process, connection, folder))
    return _servers[0][1:]


def can_fork(args: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether this start can be a fork."""
    python = args[0] == sys.executable and args[1] in ("-m", "-c")
    usual = forking.read_at_start(environ) == forking.read_at_start(os.environ)
    return python and usual and REAL not in environ


def in_programs(command: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command and environment with which Python is forked, and all Python that it starts.

    For commands that start others, as `dvc repro` starts the stages.
    """
    if REAL in environ:
        return [*command], dict(environ)
    _, folder = server()
    first = str(folder / "python") if command[0] == sys.executable else command[0]
    path = f"{folder}{os.pathsep}{environ['PATH']}"
    return [first, *command[1:]], {**environ, "PATH": path, program.SERVER: str(folder / "socket")}


class Popen(subprocess.Popen[str]):
    """subprocess.Popen with text. Python is forked; pipes and waiting are those of the standard library."""

    def __init__(self, args: Sequence[object], ranks: int = 0, **options: Any) -> None:
        self._answers: socket.socket | None = None  # the server sends the PID, then the exit status
        self._ranks, self._options = ranks, options
        super().__init__([str(word) for word in args], **{**options, "text": True})

    def _execute_child(self, *arguments: Any) -> None:
        base = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        of = inspect.signature(base).bind(self, *arguments).arguments
        environ = dict(of["env"] if of["env"] is not None else os.environ)
        if not can_fork(of["args"], environ):
            base(self, *arguments)
            return
        streams = {0: of["p2cread"], 1: of["c2pwrite"], 2: of["errwrite"]}
        cwd = str(Path(of["cwd"] or ".").absolute())
        request = forking.Request(of["args"][1:], environ, cwd, of["start_new_session"], self._ranks)
        with _one_at_a_time:
            connection, _ = server()
            self._answers, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with its:
                fds = {number: number if fd == -1 else fd for number, fd in streams.items()}
                forking.send(connection, request, {**fds, forking.ANSWERS: its.fileno()})
        self.pid = int(self._answers.recv(64))
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(of[end] for end in ends))  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._answers is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        try:
            status = self._answers.recv(64, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self._answers.close()
        return self.pid, int(status) if status else signal.SIGKILL  # empty: the server was killed, with its children

    def _internal_poll(self, *arguments: Any, **named: Any) -> int | None:
        if self._answers is None:
            return super()._internal_poll(*arguments, **named)  # type: ignore[misc,no-any-return]
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


def run(
    args: Sequence[object], ranks: int = 0, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Start Python and wait for its end: exit status and output."""
    with Popen(args, ranks, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        output = process.communicate()
    done = subprocess.CompletedProcess([str(word) for word in args], process.returncode, *output)
    if check:
        done.check_returncode()
    return done


def run_with_children(
    command: Sequence[str], folder: Path, environ: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder and wait for its end; see in_programs."""
    words, variables = in_programs(command, environ)
    return subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=False)
