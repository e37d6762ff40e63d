"""Starts of Python in hundredths of a second, where starting is not what a test is about.

    starts.run([sys.executable, "-m", "pipeline.train"], cwd=folder)       as subprocess.run, its output captured
    starts.Popen([sys.executable, "-c", script], env=…, stderr=…)          as subprocess.Popen, with text

Importing torch takes seconds, longer than a small training. So a process that has imported it forks one for every start
(forking.py). What is started so is a process of its own, with its own number, session, signals, exit status, folder,
environment and streams; it imports this project's modules anew, from where it is started. With `ranks`, a launcher can
start as many processes in the same way.

It does not show the start of the interpreter and of the libraries, nor another seed of str's hashes in every process,
and /proc has the server's command line. Tests of starting, of killing and of signals take real starts (subprocess), and
with PERENNIAL_REAL_STARTS=1 all do.
"""

import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.helpers import forking

PROJECT = Path(__file__).resolve().parents[2]
# Python and the libraries read these when they start: where one is not as it is here, the start is a real one.
READ_AT_START = (
    "PYTHON", "LANG", "LC_", "LD_", "OMP_", "MKL_", "KMP_", "TORCH_", "ATEN_", "ONEDNN_", "DNNL_", "NUMBA_", "TF_",
    "CUDA_",
)  # fmt: skip
# What pipeline.launch sets for its processes, and the libraries of forked ones have read in the server.
AS_LAUNCHED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
ROOM = {"PERENNIAL_ROOM": 2**16 * "."}  # where each forked process has the environment that /proc shows

_one_at_a_time = threading.Lock()
_servers: list[tuple["subprocess.Popen[bytes]", socket.socket]] = []  # at most one


def stop() -> None:
    """End the server, if there is one."""
    for process, connection in _servers:
        connection.close()
        process.wait()
    _servers.clear()


def server() -> socket.socket:
    """The connection to the process that forks: it ends when this one does, and is started when it is not there."""
    if any(process.poll() is not None for process, _ in _servers):  # killed, with all that a test had started
        stop()
    if not _servers:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.forking", str(its.fileno())],
                cwd=PROJECT, env={**os.environ, "PYTHONPATH": str(PROJECT), **AS_LAUNCHED, **ROOM},
                stdin=subprocess.DEVNULL, pass_fds=[its.fileno()],
            )  # fmt: skip
        _servers.append((process, ours))
    return _servers[0][1]


def read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(READ_AT_START) and name != "PYTHONPATH"}


def forked(args: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether such a start can be forked."""
    python = args[0] == sys.executable and args[1] in ("-m", "-c")
    usual = read_at_start(environ) == read_at_start(os.environ)
    return python and usual and "PERENNIAL_REAL_STARTS" not in environ


class Popen(subprocess.Popen[str]):
    """subprocess.Popen, with text; what is Python is forked, with the standard library's own pipes and waiting."""

    def __init__(self, args: Sequence[object], ranks: int = 0, **options: Any) -> None:
        self._answers: socket.socket | None = None  # from the server: the number of the process, its status
        self._ranks, self._options = ranks, options
        super().__init__([str(word) for word in args], **{**options, "text": True})

    def _execute_child(self, *given: Any) -> None:
        base = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        of = inspect.signature(base).bind(self, *given).arguments
        environ = dict(of["env"] if of["env"] is not None else os.environ)
        if not forked(of["args"], environ):
            base(self, *given)
            return
        streams = {0: of["p2cread"], 1: of["c2pwrite"], 2: of["errwrite"]}
        cwd = str(Path(of["cwd"] or ".").absolute())
        request = forking.Request(of["args"][1:], environ, cwd, of["start_new_session"], self._ranks)
        with _one_at_a_time:
            connection = server()
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
            said = self._answers.recv(64, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self._answers.close()
        return self.pid, int(said) if said else signal.SIGKILL  # the server was killed, and so was what it started

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self._answers is None:
            return super()._internal_poll(*given, **named)  # type: ignore[misc,no-any-return]
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


def run(
    args: Sequence[object], ranks: int = 0, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Start Python, wait for its end; its status and what it said."""
    with Popen(args, ranks, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        said = process.communicate()
    done = subprocess.CompletedProcess([str(word) for word in args], process.returncode, *said)
    if check:
        done.check_returncode()
    return done
