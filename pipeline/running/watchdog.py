"""Finds and ends inactive processes: stopped ones (SIGSTOP), and ones that only wait.

No message is sent to them: their state is in /proc. Seconds are counted as checks, one per second, not read from a
clock. So no second passes while the checking process is stopped too (Ctrl-Z, a laptop that sleeps).
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
from pipeline.running.exits import GRACE_SECONDS

# A waiting process gets longer than the timeout: its exchange ends at the timeout, and names the process it waited for.
MARGIN_SECONDS = 10


def state(pid: int) -> str:
    """The state as in proc(5): R runs, S waits, D is in the kernel, T is stopped. Empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def is_stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP) has stopped the process."""
    return state(pid) == "T"


def has_ended(pid: int) -> bool:
    """Whether the process has ended; its exit status may still be unread."""
    return state(pid) in ("", "Z", "X")


def activity(pid: int) -> tuple[int, ...]:
    """Numbers that grow while a process's main thread runs: context switches and CPU ticks. Empty if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
        ticks = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return ()
    return (*(int(line.split()[1]) for line in lines if "ctxt_switches" in line), *map(int, ticks))


def descendant_cpu_seconds(pid: int) -> float:
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


class Inactivity:
    """Counts the checks in a row in which a process was stopped, and in which its main thread only waited."""

    def __init__(self, pid: int) -> None:
        self.pid, self.stopped_checks, self.idle_checks = pid, 0, 0
        self._activity: tuple[int, ...] = ()
        self._descendant_seconds = 0.0

    def check_stopped(self) -> None:
        """Count a check in which it is stopped."""
        self.stopped_checks = self.stopped_checks + 1 if is_stopped(self.pid) else 0

    def check_activity(self) -> None:
        """Count a check in which it only waits. In the kernel (D) and under a debugger (t), it counts as working."""
        numbers, is_idle = activity(self.pid), False
        waits = state(self.pid) == "S"
        if waits and numbers == self._activity:  # only then, because checking the descendants costs more
            seconds = descendant_cpu_seconds(self.pid)
            is_idle = seconds == self._descendant_seconds and not in_kernel(self.pid)
            self._descendant_seconds = seconds
        self.idle_checks = self.idle_checks + 1 if is_idle else 0
        self._activity = numbers


class Watch:
    """A thread of the launcher. It kills a process that is inactive for too long, and stores a Fault that names it.

    `pids` returns process ids by name. A stopped process is killed after `seconds`, or as soon as another one has
    ended, because the launcher would only wait for it. A waiting process is killed after `seconds` + MARGIN_SECONDS:
    its exchanges have a shorter timeout. `waits` false: waiting is no reason to kill; srun itself only waits.
    """

    def __init__(self, pids: Callable[[], Mapping[str, int]], seconds: int, waits: bool = True) -> None:
        self.faults: dict[str, Fault] = {}  # name → the fault of a process that was killed
        self._pids, self._seconds, self._waits = pids, seconds, waits
        self._inactivities: dict[str, Inactivity] = {}
        self._seconds_since_signal = -1  # that was forwarded; -1: none was
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()

    def has_processes(self) -> bool:
        """Whether any process has been seen so far."""
        return bool(self._inactivities)

    def end(self, name: str, why: str) -> None:
        """Kill one of the processes at once."""
        with suppress(ProcessLookupError, KeyError):
            pid = self._inactivities[name].pid if name in self._inactivities else self._pids()[name]
            self.faults[name] = Fault(f"{name} (pid {pid})", f"{why}, and was killed", "failed", remedy="see above")
            os.kill(pid, signal.SIGKILL)

    def forward(self, number: int, again: bool) -> None:
        """Send a signal to all processes, and continue stopped ones to receive it; `again`: kill stopped ones."""
        for name, pid in self._pids().items():
            if again and is_stopped(pid):
                self.end(name, f"was stopped (state T) when {signal.Signals(number).name} came again")
            elif not again:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                self._seconds_since_signal = max(self._seconds_since_signal, 0)
                if is_stopped(pid):
                    self._wake(name, pid)

    def _wake(self, name: str, pid: int) -> None:
        print(f"launch: {name} (pid {pid}) was stopped (state T); it goes on, to save", file=sys.stderr)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _run(self) -> None:
        while not self._closed.wait(1):
            self._seconds_since_signal += self._seconds_since_signal >= 0
            for name, pid in self._pids().items():
                if name not in self._inactivities or self._inactivities[name].pid != pid:
                    self._inactivities[name] = Inactivity(pid)
            any_ended = any(has_ended(inactivity.pid) for inactivity in self._inactivities.values())
            for name, inactivity in self._inactivities.items():
                inactivity.check_stopped()
                # On a busy machine a stop can take effect after the signal.
                if self._seconds_since_signal >= 0 and inactivity.stopped_checks == 1:
                    self._wake(name, inactivity.pid)
                if self._waits:
                    inactivity.check_activity()
                if inactivity.stopped_checks >= (2 if any_ended else self._seconds):
                    self.end(name, f"was silent for {inactivity.stopped_checks} s: it was stopped (state T)")
                elif self._waits and self._seconds_since_signal > GRACE_SECONDS and not has_ended(inactivity.pid):
                    self.end(name, f"had not stopped {self._seconds_since_signal} s after a request to stop")
                elif inactivity.idle_checks >= self._seconds + MARGIN_SECONDS:
                    self.end(name, f"was silent for {inactivity.idle_checks} s: it only waited (run.timeout_seconds)")
