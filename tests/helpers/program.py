"""The program `python` for children of a test: it requests a forked process of the server, and behaves as it does.

    python -m MODULE arguments…        python -P FILE arguments…

starts.server writes this text to a file of its own, because it imports nothing of the project. A start of another kind,
or with other variables that are read at a start, is a real start of Python.
"""

import json
import os
import signal
import socket
import sys

SERVER = "PERENNIAL_FORKS"  # the variable that has the path of the server's socket
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


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


def follow(connection: socket.socket, pid: int) -> None:
    """End as the process does: with its exit status, or by the same signal. It gets the signals of this process."""
    for number in FORWARDED:
        signal.signal(number, lambda number, _: os.killpg(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    os.chdir("/")  # the forked process works in the folder, and this one does not
    answer = connection.recv(64)
    status = os.waitstatus_to_exitcode(int(answer)) if answer else -signal.SIGKILL  # empty: the server was killed
    if status >= 0:
        os._exit(status)
    if -status in FORWARDED:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


def main(arguments: list[str]) -> None:
    """Run the arguments in a forked process, or become a real Python."""
    if arguments[:1] == ["-m"] or (arguments[:1] == ["-P"] and arguments[1:2] != ["-c"]):
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # until there is a process that gets them
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            if pid := request(connection, arguments):
                follow(connection, pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
