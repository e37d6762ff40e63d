"""Find and end processes that do nothing any more: stopped ones (SIGSTOP), and ones that wait for ever.

Nothing is sent to them: the kernel shows their state in /proc. Seconds are counted as checks, one per second, not read
from a clock. So no second passes while the checking process is stopped too (Ctrl-Z, a laptop that sleeps).
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from pipeline.base.errors import Fault

# A waiting process gets more than the timeout: its exchange ends at the timeout, and names the process it waited for.
MARGIN_SECONDS = 10


def state(pid: int) -> str:
    """The state of a process as in proc(5): R runs, S waits, D is in the kernel, T is stopped. Empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP) has stopped the process."""
    return state(pid) == "T"


def ended(pid: int) -> bool:
    """Whether the process has ended; its exit status may still be unread."""
    return state(pid) in ("", "Z", "X")


def work(pid: int) -> tuple[int, ...]:
    """Numbers that grow while a process's main thread runs: context switches and CPU ticks. Empty if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
        ticks = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return ()
    return (*(int(line.split()[1]) for line in lines if "ctxt_switches" in line), *map(int, ticks))


def work_below(pid: int) -> float:
    """The CPU seconds of all descendants of a process, such as a compiler."""
    seconds = 0.0
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                seconds += sum(child.cpu_times()[:2])
    return seconds


def in_kernel(pid: int) -> bool:
    """Whether a thread of the process is in the kernel (D), for example because of a slow disk."""
    return any(state(int(thread.name)) == "D" for thread in Path(f"/proc/{pid}/task").glob("*"))


class Silence:
    """The number of checks in a row in which a process was stopped, and in which its main thread only waited."""

    def __init__(self, pid: int) -> None:
        self.pid, self.stopped, self.idle = pid, 0, 0
        self._work: tuple[int, ...] = ()
        self._below = 0.0

    def look(self) -> None:
        """Check whether it is stopped."""
        self.stopped = self.stopped + 1 if stopped(self.pid) else 0

    def look_at_work(self) -> None:
        """Check whether it works. In the kernel (D) and under a debugger (t), it counts as working."""
        done, waits = work(self.pid), state(self.pid) == "S"
        if waits and done == self._work:  # only then, because checking the descendants costs more
            below = work_below(self.pid)
            waits = below == self._below and not in_kernel(self.pid)
            self._below = below
        else:
            waits = False
        self.idle = self.idle + 1 if waits else 0
        self._work = done


class Watch:
    """A thread of the launcher. It kills a process that does nothing for too long, and remembers its name.

    `pids` gives process ids by name. A stopped process is killed after `seconds`, or as soon as another one has ended,
    because the launcher would only wait for it. A waiting process is killed after `seconds` + MARGIN_SECONDS: its
    exchanges have a shorter timeout. `waits` false: do not watch for waiting; srun itself does nothing else.
    """

    def __init__(self, pids: Callable[[], Mapping[str, int]], seconds: int, waits: bool = True) -> None:
        self.named: dict[str, Fault] = {}  # name → the fault of a process that was killed
        self._pids, self._seconds, self._waits = pids, seconds, waits
        self._silences: dict[str, Silence] = {}
        self._asked = False  # a signal has been forwarded
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()

    def seen(self) -> bool:
        """Whether there has been any process."""
        return bool(self._silences)

    def end(self, name: str, why: str) -> None:
        """Kill one of the processes at once."""
        with suppress(ProcessLookupError, KeyError):
            pid = self._silences[name].pid if name in self._silences else self._pids()[name]
            self.named[name] = Fault(f"{name} (pid {pid})", f"{why}, and was killed", "failed", remedy="see above")
            os.kill(pid, signal.SIGKILL)

    def forward(self, number: int, again: bool) -> None:
        """Send a signal to all processes, and continue stopped ones to receive it; `again`: kill stopped ones."""
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
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _run(self) -> None:
        while not self._over.wait(1):
            for name, pid in self._pids().items():
                if name not in self._silences or self._silences[name].pid != pid:
                    self._silences[name] = Silence(pid)
            one_ended = any(ended(silence.pid) for silence in self._silences.values())
            for name, silence in self._silences.items():
                silence.look()
                if self._asked and silence.stopped == 1:  # a stop can take effect after the signal, on a busy machine
                    self._wake(name, silence.pid)
                if self._waits:
                    silence.look_at_work()
                if silence.stopped >= (2 if one_ended else self._seconds):
                    self.end(name, f"was silent for {silence.stopped} s: it was stopped (state T)")
                elif silence.idle >= self._seconds + MARGIN_SECONDS:
                    self.end(name, f"was silent for {silence.idle} s: it only waited (run.timeout_seconds)")
