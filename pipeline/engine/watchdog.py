"""Which processes do nothing any more, and their end: a stopped one (SIGSTOP), and one that waits for ever.

Nothing is sent: the kernel says what a process does (/proc). Seconds are counted in looks, one a second, and not read
from a clock: where the one who looks is stopped as well (Ctrl-Z, a laptop that sleeps), no second passes.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from pipeline.engine import distributed

MARGIN_SECONDS = 10  # beyond the timeout, for who waits: its own exchange ends at the timeout, and names whom


def state(pid: int) -> str:
    """The state of a process, as proc(5) writes it: R runs, S waits, D is in the kernel, T is stopped; "" if gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP) keeps the process from running."""
    return state(pid) == "T"


def ended(pid: int) -> bool:
    """Whether the process is gone, or has only its exit status left."""
    return state(pid) in ("", "Z", "X")


def proceed(pid: int) -> None:
    """Let a stopped process go on."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def work(pid: int) -> tuple[int, ...]:
    """What grows while the main thread of a process runs: how often it has run, and for how long."""
    try:
        lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
        ticks = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return ()
    return (*(int(line.split()[1]) for line in lines if "ctxt_switches" in line), *map(int, ticks))


def work_below(pid: int) -> float:
    """The CPU seconds of all processes that a process has started (a compiler), and those have."""
    seconds = 0.0
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                seconds += sum(child.cpu_times()[:2])
    return seconds


def in_kernel(pid: int) -> bool:
    """Whether a thread of the process is in the kernel (D): a disk is slow, or a network file system away."""
    return any(state(int(thread.name)) == "D" for thread in Path(f"/proc/{pid}/task").glob("*"))


class Silence:
    """For how many looks in a row a process has been stopped, and for how many its main thread has only waited."""

    def __init__(self, pid: int) -> None:
        self.pid, self.stopped, self.idle = pid, 0, 0
        self._work: tuple[int, ...] = ()
        self._below = 0.0

    def look(self) -> None:
        """Look whether it is stopped."""
        self.stopped = self.stopped + 1 if stopped(self.pid) else 0

    def look_at_work(self) -> None:
        """Look whether it works. In the kernel (D) or under a debugger (t) it does, for all that can be seen."""
        done, waits = work(self.pid), state(self.pid) == "S"
        if waits and done == self._work:  # only then: to look below costs more
            below = work_below(self.pid)
            waits = below == self._below and not in_kernel(self.pid)
            self._below = below
        else:
            waits = False
        self.idle = self.idle + 1 if waits else 0
        self._work = done


class Watch:
    """A thread of the launcher: kills a process that has done nothing for too long, and remembers its name.

    `pids` gives the processes by name. One that is stopped is killed after `seconds`, or as soon as another one has
    ended, for then it would only be waited for. One that waits is killed after `seconds` and a margin: its exchanges
    would have ended by then. `waits`: such are watched at all; a command such as srun does nothing but wait.
    """

    def __init__(self, pids: Callable[[], Mapping[str, int]], seconds: int, waits: bool = True) -> None:
        self.named: dict[str, str] = {}  # what each that was killed had done, by its name
        self._pids, self._seconds, self._waits = pids, seconds, waits
        self._silences: dict[str, Silence] = {}
        self._asked = False  # a signal has been sent to all
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watching."""
        self._over.set()
        self._thread.join()

    def seen(self) -> bool:
        """Whether any process has been there."""
        return bool(self._silences)

    def end(self, name: str, why: str) -> None:
        """Kill one of the processes at once."""
        with suppress(ProcessLookupError, KeyError):
            pid = self._silences[name].pid if name in self._silences else self._pids()[name]
            self.named[name] = f"{name} (pid {pid}) {why}, and was killed"
            os.kill(pid, signal.SIGKILL)

    def forward(self, number: int, again: bool) -> None:
        """Send a signal to all; one that is stopped goes on to receive it, or is killed if it is sent again."""
        for name, pid in self._pids().items():
            if again and stopped(pid):
                self.end(name, f"was stopped (state T) when {signal.Signals(number).name} came again")
            elif not again:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                self._asked = True
                if stopped(pid):
                    self._wake(name, pid)

    def _wake(self, name: str, pid: int) -> None:
        print(f"launch: {name} (pid {pid}) was stopped (state T); it goes on, to save", file=sys.stderr)
        proceed(pid)

    def _run(self) -> None:
        while not self._over.wait(1):
            for name, pid in self._pids().items():
                if name not in self._silences or self._silences[name].pid != pid:
                    self._silences[name] = Silence(pid)
            alone = any(ended(silence.pid) for silence in self._silences.values())
            for name, silence in self._silences.items():
                silence.look()
                if self._asked and silence.stopped == 1:  # on a busy machine a stop can take effect after the signal
                    self._wake(name, silence.pid)
                if self._waits:
                    silence.look_at_work()
                if silence.stopped >= (2 if alone else self._seconds):
                    self.end(name, f"was silent for {silence.stopped} s: it was stopped (state T)")
                elif silence.idle >= self._seconds + MARGIN_SECONDS:
                    self.end(name, f"was silent for {silence.idle} s: it only waited (run.timeout_seconds)")


@contextmanager
def launcher_roused(seconds: int) -> Iterator[None]:
    """In the block and at its end, a launcher that is stopped for so long is made to go on, with a word.

    It keeps the store in which the processes meet, and has to say how they ended. A training that is asked to stop for
    that reason (see stopping.py) is to be first, so within the block a margin is added.
    """
    silence, over = Silence(os.getppid()), threading.Event()

    def look(most: int) -> bool:
        """Whether it is stopped and not yet for too long."""
        silence.look()
        if silence.stopped > most:
            print(
                f"the launcher (pid {silence.pid}) was silent for {most} s: it was stopped (state T); it goes on",
                file=sys.stderr,
            )
            proceed(silence.pid)
        return 0 < silence.stopped <= most

    def watch() -> None:
        while not over.wait(1):
            look(seconds + MARGIN_SECONDS)

    if distributed.ENDED_NOTE not in os.environ:  # nobody's launcher is its parent
        yield
        return
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        while look(seconds):
            time.sleep(1)
