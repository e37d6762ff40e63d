"""The process that has the libraries imported and forks one for every start that it is asked for; see starts.py.

    python -m tests.helpers.forking FD        the socket on which it is asked; it ends with that

It has a single thread whenever it forks. A launcher's processes must be children of the launcher, which has threads by
the time it starts them: so it forks them before its own work begins, and each waits to be told what it is to be.
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
ANSWERS = 3  # where the number of the new process is answered, and its status
SPARE = 512  # file descriptors from here on are nobody's
OURS = ("pipeline", "benchmarks", "tests")  # imported anew by every process, from where it is started


class Request(NamedTuple):
    """`python words…`, started in this environment and folder."""

    words: list[str]
    environ: dict[str, str]
    cwd: str
    session: bool  # of its own
    ranks: int = 0  # how many processes it can start by forking
    dies_with_parent: bool = False


def send(connection: socket.socket, request: Request, fds: Mapping[int, int]) -> None:
    """Ask for a process, giving it open files: its number of each → ours."""
    socket.send_fds(connection, [json.dumps([request, list(fds)]).encode()], list(fds.values()))


def receive(connection: socket.socket) -> tuple[Request, dict[int, int]] | None:
    """What `send` sent; None when nobody can send any more."""
    message, received, _, _ = socket.recv_fds(connection, 2**20, 64)
    if not message:
        return None
    request, numbers = json.loads(message)
    return Request(*request), dict(zip(numbers, received, strict=True))


# ---------------------------------------------------------------- the server


def import_libraries() -> list[str]:
    """Import what the stages import, and forget this project's own modules. Returns the libraries' part of sys.path."""
    for name in ("launch", "download", "split", "prepare", "train", "evaluate", "predict"):
        importlib.import_module(f"pipeline.{name}")
    import numba
    import torch._dynamo  # torch imports it at the first step of an optimizer
    import torch.distributed.elastic.agent.server.local_elastic_agent
    import torch.utils.tensorboard  # noqa: F401

    numba.njit(lambda x: x + 1)(1)  # numba imports a part of itself for its first loop
    here = str(Path.cwd())
    forget_ours()
    gc.collect()
    gc.freeze()
    return [folder for folder in sys.path if folder not in ("", here)]


def forget_ours() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
        del sys.modules[name]


def next_start(control: socket.socket) -> tuple[Request, dict[int, int]] | None:
    """Fork a process for every request and tell its status when it ends. Returns the request in each new process, and
    None in this one when nobody can ask any more.
    """
    answers: dict[int, tuple[int, socket.socket]] = {}  # a descriptor of the process → its number, where to tell
    with selectors.DefaultSelector() as selector, control:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in answers:
                    tell(*answers.pop(key.fd))
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    continue
                if (asked := receive(control)) is None:
                    return None
                _, fds = asked
                if (pid := os.fork()) == 0:
                    for _, answer in answers.values():
                        answer.close()
                    return asked
                answers[os.pidfd_open(pid)] = pid, socket.socket(fileno=fds.pop(ANSWERS))
                selector.register(next(reversed(answers)), selectors.EVENT_READ)
                for fd in fds.values():
                    os.close(fd)


def tell(pid: int, answer: socket.socket) -> None:
    """Send the status of a process that has ended to whoever asked for it."""
    _, status = os.waitpid(pid, 0)
    with answer, suppress(BrokenPipeError):  # of one who does not want to know any more
        answer.send(str(status).encode())


# ---------------------------------------------------------------- a process that was forked


def prctl_death(number: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def become(request: Request, fds: dict[int, int], libraries: Sequence[str]) -> NoReturn:
    """Be what was asked for, to its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.session:
        os.setsid()
    prctl_death(signal.SIGTERM if request.dies_with_parent else 0)
    with socket.socket(fileno=fds.pop(ANSWERS)) as answer:
        answer.send(str(os.getpid()).encode())
    moved = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, SPARE) for number, fd in fds.items()}
    os.closerange(3, SPARE)
    for number, fd in moved.items():
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    show_environment(request.environ)
    os.environ.update(request.environ)
    os.chdir(request.cwd)
    told = [folder for folder in request.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:] = [request.cwd if request.words[0] == "-m" else "", *told, *libraries]
    if request.ranks:
        fork_ranks(request.ranks, libraries)
    status = be(request.words)
    # As Python ends, but that it does not take apart, object by object, what the server has imported.
    threading._shutdown()  # type: ignore[attr-defined]  # it waits for threads
    atexit._run_exitfuncs()
    for pid, connection in _waiting:  # for nothing
        connection.close()
        os.waitpid(pid, 0)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status & 255)


def show_environment(environ: Mapping[str, str]) -> None:
    """Write the environment where the kernel reads it for /proc/self/environ: the pipeline looks there, too."""
    facts = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(facts[47]), int(facts[48])  # proc_pid_stat(5): env_start, env_end
    block = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items())
    if len(block) > end - start:
        raise RuntimeError(f"an environment of {len(block)} bytes; there is room for {end - start}: raise starts.ROOM")
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, block, len(block))


def be(words: list[str]) -> int:
    """Run `python words…`."""
    sys.orig_argv = [sys.executable, *words]
    try:
        if words[0] == "-m":
            sys.argv = ["-m", *words[2:]]  # as Python itself does, until it has found the module
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *words[2:]]
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(words[1], "<string>", "exec"), main.__dict__)
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

_waiting: list[tuple[int, socket.socket]] = []  # processes that wait to be told what they are to be
_real_spawn = multiprocessing.util.spawnv_passfds


def fork_ranks(count: int, libraries: Sequence[str]) -> None:
    """Fork processes that wait, and have this launcher take them where it would start Python."""
    for _ in range(count):
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if (pid := os.fork()) == 0:
            ours.close()
            wait_to_be_told(its, libraries)
        its.close()
        _waiting.append((pid, ours))
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    setattr(subprocess_handler, "Popen", Rank)  # noqa: B010  # their types need not know
    setattr(multiprocessing.util, "spawnv_passfds", spawned)  # noqa: B010


def wait_to_be_told(connection: socket.socket, libraries: Sequence[str]) -> NoReturn:
    """In a new process: become what the launcher says; end with it, or when it ends without a word."""
    prctl_death(signal.SIGKILL)
    for _, anothers in _waiting:
        anothers.close()
    _waiting.clear()
    if (asked := receive(connection)) is None:
        os._exit(0)
    request, fds = asked
    become(request, {**fds, ANSWERS: connection.detach()}, libraries)


def take(request: Request, fds: Mapping[int, int]) -> int | None:
    """Tell a process that waits what to become. Returns its number, or None when none is left."""
    while _waiting:
        pid, connection = _waiting.pop(0)
        with connection, suppress(BrokenPipeError, ConnectionResetError):
            send(connection, request, fds)
            if connection.recv(64):
                return pid
        os.waitpid(pid, 0)  # a signal to this launcher's children has ended it
    return None


class Rank(subprocess.Popen[bytes]):
    """What torchrun's agent starts a process with."""

    def _execute_child(self, *given: Any) -> None:
        base = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        of = inspect.signature(base).bind(self, *given).arguments
        setpriv = ["setpriv", "--pdeathsig", "TERM"]
        mortal = list(of["args"][:3]) == setpriv
        python, *words = of["args"][3:] if mortal else of["args"]
        request = Request(words[words[0] == "-u" :], of["env"], str(Path.cwd()), of["start_new_session"], 0, mortal)
        pid = take(request, {}) if python == sys.executable and of["c2pwrite"] == of["errwrite"] == -1 else None
        if pid is None:
            base(self, *given)
        else:
            self.pid, self._child_created = pid, True


def spawned(path: bytes, args: Sequence[bytes | str], passfds: Sequence[int]) -> int:
    """What multiprocessing's spawn starts a process with."""
    words = [os.fsdecode(word) for word in args]
    if "-c" in words and "spawn_main" in (code := words[words.index("-c") :])[1]:
        pid = take(Request(code, dict(os.environ), str(Path.cwd()), False), {fd: fd for fd in passfds})
        if pid is not None:
            return pid
    return _real_spawn(path, args, passfds)


def main() -> None:
    libraries = import_libraries()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with whoever asks
        asked = next_start(control)
    if asked:
        become(*asked, libraries)


if __name__ == "__main__":
    main()
