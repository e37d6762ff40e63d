"""A server process that has imported the libraries, and forks a process for each request; see starts.py.

    python -m tests.helpers.forking FD PROGRAMS ROOM

FD: a socket for requests; the server ends when it is closed. PROGRAMS: a socket to which the programs `python`
(program.py) connect. ROOM: memory in which a process shows its command in /proc.

The server has one thread whenever it forks. The ranks of a launcher must be children of the launcher, but the launcher
has several threads when it starts them. So it forks them before its own work begins, and each waits for its request.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import inspect
import io
import json
import logging
import multiprocessing.util
import os
import re
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import psutil
from tqdm import tqdm

PR_SET_PDEATHSIG = 1  # prctl(2)
CPU_CODE = "ATEN_CPU_CAPABILITY"  # set by train.arithmetic: portable; the libraries of a forked process are native
ANSWERS = 3  # the file descriptor on which the PID and the exit status are sent
SPARE = 512  # file descriptors from here on are not in use
OURS = ("pipeline", "benchmarks", "tests")  # imported anew by each process, from its own folder
# Imported anew, too: what takes or replaces sys.stdout when it is imported. The packages that it needs stay.
TAKES_STDOUT = ("dvc", "dvc_objects", "dvc_data", "colorama")
# Python and the libraries read these at their start: if a value differs from the server's, the start is a real one.
READ_AT_START = (
    "PYTHON", "LANG", "LC_", "LD_", "OMP_", "MKL_", "KMP_", "TORCH_", "ATEN_", "ONEDNN_", "DNNL_", "NUMBA_", "TF_",
    "CUDA_",
)  # fmt: skip
# A launcher sets these for its processes; the libraries of forked ones have read them in the server.
AS_LAUNCHED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
LAUNCHERS = (["-m", "pipeline", "train"], ["-m", "pipeline", "evaluate"])


class Request(NamedTuple):
    """A start of `python arguments…` in this environment and folder."""

    arguments: list[str]
    environ: dict[str, str]
    cwd: str
    session: bool  # whether in a new session
    ranks: int = 0  # how many processes are forked for it in advance
    dies_with_parent: bool = False
    program: str = ""  # the path of the program `python` that requests it: its sys.executable
    cores: Sequence[int] = ()  # on which it runs; none: on those of the server


def read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python and the libraries read at their start."""
    return {name: value for name, value in environ.items() if name.startswith(READ_AT_START) and name != "PYTHONPATH"}


def send(connection: socket.socket, request: Request, fds: Mapping[int, int]) -> None:
    """Request a process. `fds`: its file descriptors → ours."""
    socket.send_fds(connection, [json.dumps([request._asdict(), list(fds)]).encode()], list(fds.values()))


def receive(connection: socket.socket) -> tuple[Request, dict[int, int]] | None:
    """The request and the received file descriptors; None if the socket is closed."""
    message, own_fds, _, _ = socket.recv_fds(connection, 2**20, 64)
    if not message:
        return None
    request, numbers = json.loads(message)
    return Request(**request), dict(zip(numbers, own_fds, strict=True))


# ---------------------------------------------------------------- the server


def import_libraries() -> list[str]:
    """Import the libraries of all stages, and remove the project's modules again. Returns sys.path of the libraries."""
    stages = sorted(path.stem for path in (Path(__file__).parents[2] / "pipeline/stages").glob("[a-z]*.py"))
    # onnxruntime is left out: its import starts a thread
    for name in (
        *(f"stages.{stage}" for stage in stages),
        "running.launch_train",
        "commands.predict",
        "evaluation.onnx_export",
    ):
        importlib.import_module(f"pipeline.{name}")
    with redirect_stdout(sys.stdout), redirect_stderr(sys.stderr):  # DVC replaces both for good
        import dvc.cli.parser
        import dvc.repo.reproduce  # noqa: F401
    import numba
    import torch._dynamo  # torch imports it at the first step of an optimizer
    import torch.distributed.elastic.agent.server.local_elastic_agent
    import torch.utils.tensorboard

    numba.njit(lambda x: x + 1)(1)  # numba imports more modules when it first compiles
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        interval, tqdm.monitor_interval = tqdm.monitor_interval, 0  # no thread
        # The exporter imports more, too.
        torch.onnx.export(torch.nn.Linear(1, 1), (torch.ones(1, 1),), dynamo=True, verbose=False)
        tqdm.monitor_interval = interval
    here = str(Path.cwd())
    forget(*OURS, *TAKES_STDOUT)
    for name in TAKES_STDOUT:
        logging.getLogger(name).handlers.clear()
    gc.collect()
    gc.freeze()
    if psutil.Process().num_threads() > 1:
        raise RuntimeError("a library has started a thread: a forked process could wait for it for ever")
    return [folder for folder in sys.path if folder not in ("", here)]


def forget(*packages: str) -> None:
    """Remove the modules of these packages from sys.modules."""
    for name in [name for name in sys.modules if name.split(".")[0] in packages]:
        del sys.modules[name]


def next_start(
    control: socket.socket, programs: socket.socket, usual: Mapping[str, str]
) -> tuple[Request, dict[int, int]] | None:
    """Fork a process for each request, and send its status when it ends.

    Requests come through `control`, and from each program `python` through a connection to `programs`. If such a
    program is killed, so is the process that was forked for it. `usual`: see receive_from_program.
    Returns the request in each new process, and None in this one when `control` is closed.
    """
    answers: dict[int, tuple[int, socket.socket]] = {}  # pidfd → PID, socket for its status
    with selectors.DefaultSelector() as selector, control, programs:
        selector.register(control, selectors.EVENT_READ)
        selector.register(programs, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if selector.get_map().get(key.fd) is not key:  # an event before this one was its end
                    continue
                if key.fd in answers:
                    pid, answer = answers.pop(key.fd)
                    selector.unregister(key.fd)
                    with suppress(KeyError):  # it is that of a program
                        selector.unregister(answer)
                    os.close(key.fd)
                    tell(pid, answer)
                    continue
                if isinstance(key.data, int):  # the program has ended before its process
                    selector.unregister(key.fd)
                    os.kill(key.data, signal.SIGKILL)
                    continue
                request = receive(control) if key.fileobj is control else receive_from_program(programs, usual)
                if request is None and key.fileobj is control:
                    return None
                if request is None:
                    continue
                _, fds = request
                if (pid := os.fork()) == 0:
                    for _, answer in answers.values():
                        answer.close()
                    return request
                answer = socket.socket(fileno=fds.pop(ANSWERS))
                answers[os.pidfd_open(pid)] = pid, answer
                selector.register(next(reversed(answers)), selectors.EVENT_READ)
                if key.fileobj is programs:
                    selector.register(answer, selectors.EVENT_READ, pid)
                for fd in fds.values():
                    os.close(fd)


def receive_from_program(programs: socket.socket, usual: Mapping[str, str]) -> tuple[Request, dict[int, int]] | None:
    """The request and the file descriptors of a program `python`. None if it has ended, or has to start Python.

    It has to if the variables that are read at a start are not the `usual` ones.
    """
    connection, _ = programs.accept()
    received = receive(connection)
    if received is None:
        connection.close()
        return None
    request, fds = received
    if read_at_start(request.environ) != usual:
        for fd in fds.values():
            os.close(fd)
        with connection, suppress(BrokenPipeError):
            connection.send(b"start")
        return None
    return request._replace(ranks=ranks_of(request)), {**fds, ANSWERS: connection.detach()}


def ranks_of(request: Request) -> int:
    """How many processes a program will start as a launcher: run.processes of params.yaml in its folder."""
    with suppress(OSError):
        text = (Path(request.cwd) / "params.yaml").read_text(errors="replace")
        if request.arguments[:3] in LAUNCHERS and (match := re.search(r"^  processes: (\d+)", text, re.MULTILINE)):
            return int(match[1])
    return 0


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
    elif request.program:
        os.setpgid(0, 0)  # its program sends signals to this group
    if request.program:
        sys.executable = request.program
        os.sched_setaffinity(0, request.cores)
    prctl_death(signal.SIGTERM if request.dies_with_parent else 0)
    with socket.socket(fileno=fds.pop(ANSWERS)) as answer:
        answer.send(str(os.getpid()).encode())
    copies = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, SPARE) for number, fd in fds.items()}
    os.closerange(3, SPARE)
    for number, fd in copies.items():
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    show_command(request.arguments)
    show_environment(request.environ)
    os.environ.update(request.environ)
    os.chdir(request.cwd)
    python_path = [folder for folder in request.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    arguments = list(request.arguments)
    first = [] if "-P" in arguments[:1] else [request.cwd if arguments[0] == "-m" else ""]
    sys.path[:] = [*first, *python_path, *libraries]
    if request.ranks:
        fork_ranks(request.ranks, libraries)
    status = run_python(arguments[arguments[0] == "-P" :])
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
    start, end = memory_of(47)  # env_start
    block = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items())
    if len(block) > end - start:
        raise RuntimeError(f"an environment of {len(block)} bytes; there is room for {end - start}: raise starts.ROOM")
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, block, len(block))


def show_command(arguments: Sequence[str]) -> None:
    """Write a command to the memory that /proc/self/cmdline shows, because tests and the pipeline look for processes.

    Linux takes words with spaces between them for the whole command if the last byte of this memory is not zero.
    """
    start, end = memory_of(45)  # arg_start
    words = os.fsencode(" ".join(["python", *arguments]))[: end - start - 2] + b"\0"
    ctypes.memmove(start, words, len(words))
    ctypes.memset(end - 1, ord("."), 1)


def memory_of(field: int) -> tuple[int, int]:
    """The numbers in this field of /proc/self/stat after the command, and in the next one: a start and an end."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()  # proc_pid_stat(5), from its field 3 on
    return int(fields[field]), int(fields[field + 1])


def run_python(arguments: list[str]) -> int:
    """Run `python arguments…` in this process; the exit status."""
    try:
        if arguments[0] == "-m":
            sys.argv = ["-m", *arguments[2:]]  # as Python itself does, until it has found the module
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] != "-c":
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
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
    usual = {name: value for name, value in read_at_start(os.environ).items() if name not in AS_LAUNCHED}
    libraries = import_libraries()
    with socket.socket(fileno=int(sys.argv[1])) as control, socket.socket(fileno=int(sys.argv[2])) as programs:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its socket is closed
        request = next_start(control, programs, usual)
    if request:
        become(*request, libraries)


if __name__ == "__main__":
    main()
