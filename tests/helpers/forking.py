"""A server process that has imported the libraries, and forks a process for each request; see starts.py.

    python -m tests.helpers.forking FD        FD is the socket of the requests; the server ends when it is closed

The server has one thread whenever it forks. The ranks of a launcher must be children of the launcher, but the launcher
has several threads when it starts them. So it forks them before its own work begins, and each waits for its request.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import inspect
import json
import multiprocessing.util
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

PR_SET_PDEATHSIG = 1  # prctl(2)
CPU_CODE = "ATEN_CPU_CAPABILITY"  # set by train.arithmetic: portable; the libraries of a forked process are native
ANSWERS = 3  # the file descriptor on which the PID and the exit status are sent
SPARE = 512  # file descriptors from here on are not in use
OURS = ("pipeline", "benchmarks", "tests")  # imported anew by each process, from its own folder


class Request(NamedTuple):
    """A start of `python arguments…` in this environment and folder."""

    arguments: list[str]
    environ: dict[str, str]
    cwd: str
    session: bool  # whether in a new session
    ranks: int = 0  # how many processes are forked for it in advance
    dies_with_parent: bool = False


def send(connection: socket.socket, request: Request, fds: Mapping[int, int]) -> None:
    """Request a process. `fds`: its file descriptors → ours."""
    socket.send_fds(connection, [json.dumps([request, list(fds)]).encode()], list(fds.values()))


def receive(connection: socket.socket) -> tuple[Request, dict[int, int]] | None:
    """The request and the received file descriptors; None if the socket is closed."""
    message, own_fds, _, _ = socket.recv_fds(connection, 2**20, 64)
    if not message:
        return None
    request, numbers = json.loads(message)
    return Request(*request), dict(zip(numbers, own_fds, strict=True))


# ---------------------------------------------------------------- the server


def import_libraries() -> list[str]:
    """Import the libraries of all stages, and remove the project's modules again. Returns sys.path of the libraries."""
    for name in ("launch", "download", "split", "prepare", "weights", "train", "evaluate", "report"):
        importlib.import_module(f"pipeline.stages.{name}")
    importlib.import_module("pipeline.commands.predict")
    import numba
    import torch._dynamo  # torch imports it at the first step of an optimizer
    import torch.distributed.elastic.agent.server.local_elastic_agent
    import torch.utils.tensorboard  # noqa: F401

    numba.njit(lambda x: x + 1)(1)  # numba imports more modules when it first compiles
    here = str(Path.cwd())
    forget_ours()
    gc.collect()
    gc.freeze()
    return [folder for folder in sys.path if folder not in ("", here)]


def forget_ours() -> None:
    """Remove the project's modules from sys.modules."""
    for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
        del sys.modules[name]


def next_start(control: socket.socket) -> tuple[Request, dict[int, int]] | None:
    """Fork a process for each request, and send its status when it ends.

    Returns the request in each new process, and None in this one when the socket is closed.
    """
    answers: dict[int, tuple[int, socket.socket]] = {}  # pidfd → PID, socket for its status
    with selectors.DefaultSelector() as selector, control:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in answers:
                    tell(*answers.pop(key.fd))
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    continue
                if (request := receive(control)) is None:
                    return None
                _, fds = request
                if (pid := os.fork()) == 0:
                    for _, answer in answers.values():
                        answer.close()
                    return request
                answers[os.pidfd_open(pid)] = pid, socket.socket(fileno=fds.pop(ANSWERS))
                selector.register(next(reversed(answers)), selectors.EVENT_READ)
                for fd in fds.values():
                    os.close(fd)


def tell(pid: int, answer: socket.socket) -> None:
    """Send the status of an ended process to the process that requested it."""
    _, status = os.waitpid(pid, 0)
    with answer, suppress(BrokenPipeError):  # the receiver may have ended
        answer.send(str(status).encode())


# ---------------------------------------------------------------- a process that was forked


def prctl_death(number: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def become(request: Request, fds: dict[int, int], libraries: Sequence[str]) -> NoReturn:
    """Run the request in this forked process, and end the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.session:
        os.setsid()
    prctl_death(signal.SIGTERM if request.dies_with_parent else 0)
    with socket.socket(fileno=fds.pop(ANSWERS)) as answer:
        answer.send(str(os.getpid()).encode())
    copies = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, SPARE) for number, fd in fds.items()}
    os.closerange(3, SPARE)
    for number, fd in copies.items():
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    show_environment(request.environ)
    os.environ.update(request.environ)
    os.chdir(request.cwd)
    python_path = [folder for folder in request.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:] = [request.cwd if request.arguments[0] == "-m" else "", *python_path, *libraries]
    if request.ranks:
        fork_ranks(request.ranks, libraries)
    status = run_python(request.arguments)
    # The steps of Python's own exit, without freeing each object that the server has imported.
    threading._shutdown()  # type: ignore[attr-defined]  # it waits for threads
    atexit._run_exitfuncs()
    for pid, connection in _waiting:  # forked in advance and not needed
        connection.close()
        os.waitpid(pid, 0)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status & 255)


def show_environment(environ: Mapping[str, str]) -> None:
    """Write the environment to the memory that /proc/self/environ shows, because the pipeline reads it there."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])  # proc_pid_stat(5): env_start, env_end
    block = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items())
    if len(block) > end - start:
        raise RuntimeError(f"an environment of {len(block)} bytes; there is room for {end - start}: raise starts.ROOM")
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, block, len(block))


def run_python(arguments: list[str]) -> int:
    """Run `python arguments…` in this process; the exit status."""
    try:
        if arguments[0] == "-m":
            sys.argv = ["-m", *arguments[2:]]  # as Python itself does, until it has found the module
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *arguments[2:]]
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


# ---------------------------------------------------------------- a launcher and its processes

_waiting: list[tuple[int, socket.socket]] = []  # forked processes that wait for a request: PID, socket
_real_spawn = multiprocessing.util.spawnv_passfds


def fork_ranks(count: int, libraries: Sequence[str]) -> None:
    """Fork processes that wait for a request, and make this launcher use them instead of starting Python."""
    for _ in range(count):
        launcher_end, rank_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if (pid := os.fork()) == 0:
            launcher_end.close()
            wait_for_request(rank_end, libraries)
        rank_end.close()
        _waiting.append((pid, launcher_end))
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    for module in (subprocess, subprocess_handler):
        setattr(module, "Popen", Rank)  # noqa: B010  # setattr, because mypy refuses the assignment
    setattr(multiprocessing.util, "spawnv_passfds", spawn)  # noqa: B010


def wait_for_request(connection: socket.socket, libraries: Sequence[str]) -> NoReturn:
    """In a forked process: wait for the launcher's request and run it. Ends if the launcher ends."""
    prctl_death(signal.SIGKILL)
    for _, of_another_rank in _waiting:
        of_another_rank.close()
    _waiting.clear()
    if (message := receive(connection)) is None:
        os._exit(0)
    request, fds = message
    become(request, {**fds, ANSWERS: connection.detach()}, libraries)


def take(request: Request, fds: Mapping[int, int]) -> int | None:
    """Send the request to a waiting process. Returns its PID, or None if no process is left."""
    while _waiting:
        pid, connection = _waiting.pop(0)
        with connection, suppress(BrokenPipeError, ConnectionResetError):
            send(connection, request, fds)
            if connection.recv(64):
                return pid
        os.waitpid(pid, 0)  # it was killed by a signal to the children of this launcher
    return None


class Rank(subprocess.Popen[bytes]):
    """Replaces Popen in a launcher."""

    def _execute_child(self, *call_arguments: Any) -> None:
        base = super()._execute_child  # type: ignore[misc]
        of = inspect.signature(base).bind(*call_arguments).arguments
        dies_with_parent = list(of["args"][:3]) == ["setpriv", "--pdeathsig", "TERM"]
        python, *arguments = of["args"][3:] if dies_with_parent else of["args"]
        usual = python == sys.executable and of["c2pwrite"] == of["errwrite"] == -1 and CPU_CODE not in of["env"]
        pid = None
        if usual:
            arguments = arguments[arguments[0] == "-u" :]
            request = Request(arguments, of["env"], str(Path.cwd()), of["start_new_session"], 0, dies_with_parent)
            pid = take(request, {})
        if pid is None:
            base(*call_arguments)
        else:
            self.pid, self._child_created = pid, True


def spawn(path: bytes, args: Sequence[bytes | str], passfds: Sequence[int]) -> int:
    """Replaces spawnv_passfds in multiprocessing."""
    arguments = [os.fsdecode(word) for word in args]
    if (
        CPU_CODE not in os.environ
        and "-c" in arguments
        and "spawn_main" in (code := arguments[arguments.index("-c") :])[1]
    ):
        pid = take(Request(code, dict(os.environ), str(Path.cwd()), False), {fd: fd for fd in passfds})
        if pid is not None:
            return pid
    return _real_spawn(path, args, passfds)


def main() -> None:
    libraries = import_libraries()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its socket is closed
        request = next_start(control)
    if request:
        become(*request, libraries)


if __name__ == "__main__":
    main()
