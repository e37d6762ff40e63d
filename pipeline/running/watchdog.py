"""Finds and ends processes that are stopped (SIGSTOP), or do not end after a request to stop.

No message is sent to them: their state is in /proc. Seconds are counted as checks, one per second, not read from a
clock. So no second passes while the checking process is stopped too (Ctrl-Z, a laptop that sleeps). A process that only
waits is not ended here: its exchanges end after run.timeout_seconds, and name the process for which it waited.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.base.errors import Fault
from pipeline.running.exits import GRACE_SECONDS


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


class Watch:
    """A thread of the launcher. It kills a process that is stopped for too long, and stores a Fault that names it.

    `pids` returns process ids by name. A stopped process is killed after `seconds`, or as soon as another one has
    ended, because the launcher would only wait for it. `saves`: a process saves by itself after a request to stop, so
    it is killed if it has not ended GRACE_SECONDS later. srun waits for others that save.
    """

    def __init__(self, pids: Callable[[], Mapping[str, int]], seconds: int, saves: bool = True) -> None:
        self.faults: dict[str, Fault] = {}  # name → the fault of a process that was killed
        self._pids, self._seconds, self._saves = pids, seconds, saves
        self._seen: dict[str, int] = {}  # name → process id
        self._stopped_checks: dict[int, int] = {}  # process id → checks in a row in which it was stopped
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
        return bool(self._seen)

    def end(self, name: str, why: str) -> None:
        """Kill one of the processes at once."""
        with suppress(ProcessLookupError, KeyError):
            pid = self._seen.get(name) or self._pids()[name]
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
            self._seen.update(self._pids())
            any_ended = any(map(has_ended, self._seen.values()))
            for name, pid in self._seen.items():
                checks = self._stopped_checks[pid] = self._stopped_checks.get(pid, 0) + 1 if is_stopped(pid) else 0
                # On a busy machine a stop can take effect after the signal.
                if self._seconds_since_signal >= 0 and checks == 1:
                    self._wake(name, pid)
                if checks >= (2 if any_ended else self._seconds):
                    self.end(name, f"was silent for {checks} s: it was stopped (state T)")
                elif self._saves and self._seconds_since_signal > GRACE_SECONDS and not has_ended(pid):
                    self.end(name, f"had not stopped {self._seconds_since_signal} s after a request to stop")
