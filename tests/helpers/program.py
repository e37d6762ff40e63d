"""The program `python` for children of a test: it requests a forked process of the server, and behaves as it does.

    python -m MODULE arguments…        python -P FILE arguments…

starts.programs writes this text to a file of its own, because it imports nothing of the project. A start of another
kind, or with other variables that are read at a start, is a real start of Python.
"""

import json
import os
import signal
import socket
import sys

SERVER = "PERENNIAL_FORKS"  # the variable that has the path of the server's socket
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


def start(arguments: list[str]) -> None:
    """Become a real Python."""
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606


def request(connection: socket.socket, arguments: list[str]) -> int:
    """Request a process that has these arguments, and all else of this one. Returns its PID; 0: there is none."""
    folder = os.getcwd()  # noqa: PTH109  (pathlib would take longer to import than all else here)
    fields = {
        "arguments": arguments, "environ": dict(os.environ), "cwd": folder, "program": sys.argv[0],
        "session": os.getsid(0) == os.getpid(), "cores": sorted(os.sched_getaffinity(0)),
    }  # fmt: skip
    connection.connect(os.environ[SERVER])
    socket.send_fds(connection, [json.dumps([fields, [0, 1, 2]]).encode()], [0, 1, 2])
    answer = connection.recv(64)
    return int(answer) if answer.isdigit() else 0


def end(status: int) -> None:
    """End as the process did: with its exit status, or by the same signal."""
    if status < 0:
        if -status in FORWARDED:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def main(arguments: list[str]) -> None:
    """Run the arguments in a forked process."""
    if arguments[:1] != ["-m"] and not (arguments[:1] == ["-P"] and arguments[1:2] != ["-c"]):
        start(arguments)
    signals: list[int] = []
    for number in FORWARDED:
        signal.signal(number, lambda number, _: signals.append(number))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        if (pid := request(connection, arguments)) == 0:
            start(arguments)

        def forward(number: int, _: object) -> None:
            os.killpg(pid, number)

        for number in FORWARDED:
            signal.signal(number, forward)
        for early in signals:  # they came before there was a process
            forward(early, None)
        os.chdir("/")  # the forked process works in the folder, and this one does not
        answer = connection.recv(64)
    end(os.waitstatus_to_exitcode(int(answer)) if answer else -signal.SIGKILL)  # empty: the server was killed


if __name__ == "__main__":
    main(sys.argv[1:])
