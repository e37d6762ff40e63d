"""All processes stop before the same step, and no process waits for one that is dead or silent.

One thread per process watches three things:
- signals (TERM, INT, USR1, HUP): the handler only writes a byte to a socket;
- the launcher: if it is dead, the process wants to stop and save;
- the other processes on this machine: if one is dead, this process leaves at once, because an exchange with the dead
  one would never end.

No step sends a message. A process that wants to stop writes its reason into the store of the process group. Then every
process publishes its next step, and all stop before the largest of these steps. So no process guesses a margin, and
none waits for the device.

A second thread calls the store. Rank 0 keeps the store, so a call waits while rank 0 is silent. The first thread counts
how long, and then leaves.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

from pipeline.base.errors import Fault, UserError
from pipeline.engine import distributed, rendezvous, watchdog
from pipeline.engine.rendezvous import Store
from pipeline.engine.world import World

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
GRACE_SECONDS = 25  # from the first reason to stop to the end, even if something hangs; torchrun kills after 30
LOOKS = 10  # checks per second


class HasStep(Protocol):
    """A batch of one step."""

    @property
    def step(self) -> int: ...


Item = TypeVar("Item", bound=HasStep)


class Stopping:
    """Whether, and before which step, this process must stop."""

    def __init__(self, store: Store, world: World, timeout_seconds: int) -> None:
        self._store, self._world, self._timeout = store, world, timeout_seconds
        self._next, self._stop = 0, None  # type: int, int | None
        self._holding = False  # some process wants to stop: begin no step until all agree on the last one
        self._done = False
        self._why = ""  # this process's reason to stop
        self._said = not world.is_main  # whether the user knows that the training will stop
        self._unanswered = 0  # checks since the last answer of the store
        self._asking, self._present = False, set[int]()  # whether to call the roll, and the ranks that answered
        self._agreed, self._leaving = threading.Condition(), threading.Lock()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        self._peers = self._meet()
        self._watched = {self._wake_read.fileno(): -1, _watchable(os.getppid()): world.rank}
        for rank, (host, pid) in enumerate(self._peers):
            if rank != world.rank and host == os.uname().nodename:
                self._watched[_watchable(pid)] = rank
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._watch, self._talk)]
        for thread in self._threads:
            thread.start()

    def _meet(self) -> list[tuple[str, int]]:
        """The host and the process id of every process, by rank."""
        text = f"{os.uname().nodename} {os.getpid()}"
        messages = rendezvous.gather_messages(self._store, self._world, "process", text)
        return [(host, int(pid)) for host, pid in (message.rsplit(" ", 1) for message in messages)]

    @property
    def reason(self) -> str:
        """Which process wanted to stop, and why."""
        return self._store.get("stop/why").decode()

    def before(self, step: int) -> bool:
        """Whether all processes stop before `step`. Call it before every step."""
        with self._agreed:
            while self._holding and self._stop is None:
                self._agreed.wait()
            if self._stop is not None and step >= self._stop:
                return True
            self._next = step + 1
            return False

    def until_agreed(self, batches: Iterable[Item]) -> Iterator[Item]:
        """The batches, one per step, until all processes have agreed to stop."""
        for batch in batches:
            if self.before(batch.step):
                return
            yield batch

    def over(self) -> None:
        """Mark the training as finished: from now on, this process does not leave because another one ends."""
        self._done = True

    def close(self) -> None:
        """End both threads and restore the signal handlers. A thread still in the store would abort the exit."""
        self.over()
        self._wake_write.send(b"\0")
        for thread in self._threads:
            thread.join(self._timeout)
        if any(thread.is_alive() for thread in self._threads):
            self._leave(0, f"was silent for {self._timeout} s")
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.alarm(0)
        for descriptor in self._watched:
            if descriptor != self._wake_read.fileno():
                os.close(descriptor)
        self._wake_read.close()
        self._wake_write.close()

    def blame(self, error: RuntimeError) -> None:
        """Leave and name the silent processes, if another process made the exchange fail; otherwise return."""
        time.sleep(1)  # if a process died, the thread sees it meanwhile, and leaves
        if not distributed.is_peer_failure(error):
            return
        self._asking = True
        time.sleep(3)
        absent = sorted({*range(self._world.size)} - self._present - {self._world.rank})
        message = rendezvous.first_line(error)
        for rank in [0] if self._unanswered > LOOKS else absent:
            self._leave(rank, f"was silent ({message})")
        self._leaving.acquire()
        distributed.exit_because(f"train: an exchange with another process failed ({message})", self._world, -1)

    def _watch(self) -> None:
        """The first thread: signals, the launcher, the other processes, and how long the store is silent."""
        poll = select.poll()
        for descriptor in self._watched:
            poll.register(descriptor, select.POLLIN)
        held = 0
        while not self._done:
            for descriptor, _ in poll.poll(1000 // LOOKS):
                rank = self._watched[descriptor]
                if rank == -1:
                    number = self._wake_read.recv(1)[0]
                    self._request(signal.Signals(number).name if number in list(SIGNALS) else "")
                elif rank == self._world.rank:
                    self._request("its launcher ended")
                    poll.unregister(descriptor)
                elif not self._done:
                    self._leave(rank, "ended")
            self._unanswered += 1
            if self._unanswered > self._timeout * LOOKS and not self._done:
                self._leave(0, f"was silent for {self._timeout} s")
            held = held + 1 if self._holding and self._stop is None else 0
            if held > (GRACE_SECONDS - 5) * LOOKS:
                for rank in sorted({*range(self._world.size)} - self._present):
                    self._leave(rank, f"was silent for {GRACE_SECONDS - 5} s after a request to stop")

    def _request(self, why: str) -> None:
        """Remember the reason to stop, if it is the first."""
        if why and not self._why:
            self._why = why
            signal.alarm(GRACE_SECONDS)  # its default action ends the process even if Python hangs
            self._say()

    def _say(self) -> None:
        """Answer a request to stop at once, on rank 0. A reader of stderr that has stopped must not hold it up."""
        if self._said:
            return
        with suppress(OSError):  # stderr is closed
            if select.select([], [2], [], 0)[1]:
                self._said = True
                below = "\n" if os.isatty(2) else ""  # below the progress bar
                text = f"{below}train: stopping after this step, and saving it; the next run goes on from there\n"
                os.write(2, text.encode())

    def _talk(self) -> None:
        """The second thread: all calls to the store."""
        try:
            while not self._done:
                if self._why and not self._holding:
                    self._store.compare_set("stop/why", "", f"process {self._world.rank}: {self._why}")
                self._agree()
                self._answer()
                self._unanswered = 0
                time.sleep(1 / LOOKS)
        except RuntimeError:  # the store is gone, and rank 0 with it
            if not self._done:
                self._leave(0, "ended")

    def _agree(self) -> None:
        """If a process wants to stop: publish our next step. Once all have, stop before the largest."""
        if not self._holding and self._store.check(["stop/why"]):
            signal.alarm(GRACE_SECONDS)
            with self._agreed:
                self._holding = True
                self._store.set(f"stop/{self._world.rank}", str(self._next))
            self._say()
        if self._holding and self._stop is None:
            self._present = self._having("stop")
            if len(self._present) == self._world.size:
                with self._agreed:
                    self._stop = max(int(self._store.get(f"stop/{rank}")) for rank in self._present)
                    self._agreed.notify_all()

    def _answer(self) -> None:
        """Answer a roll call. If this process called it, collect the ranks that answered."""
        if self._asking:
            self._store.set("roll/call", "")
            self._present = self._having("roll")
        if self._store.check(["roll/call"]):
            self._store.set(f"roll/{self._world.rank}", "")

    def _having(self, name: str) -> set[int]:
        """The ranks that have written under a name."""
        return {rank for rank in range(self._world.size) if self._store.check([f"{name}/{rank}"])}

    def _leave(self, rank: int, how: str) -> None:
        """End this process at once: an exchange with a dead or silent peer would never end."""
        self._leaving.acquire()  # a second thread waits here until the process ends
        host, pid = self._peers[rank]
        local = host == os.uname().nodename
        if local and watchdog.stopped(pid):
            how += "; it is stopped (state T)"
        for _ in range(5 * LOOKS):  # until the launcher has read its exit status, to report it
            if not (local and watchdog.state(pid) == "Z"):
                break
            time.sleep(1 / LOOKS)
        process = f"process {rank} of {self._world.size} (pid {pid}) on {host}"
        distributed.exit_because(f"train: {process} {how}", self._world, rank)


def _watchable(pid: int) -> int:
    """A file descriptor that becomes readable when the process ends. Raises UserError if the system forbids it."""
    try:
        return os.pidfd_open(pid)
    except PermissionError:
        reason = "processes could not see that another one ends"
        remedy = (
            "allow it: a seccomp profile with pidfd_open (Docker 20.10 or later), "
            "or docker run --security-opt seccomp=unconfined"
        )
        raise UserError(Fault("pidfd_open", "not permitted here", "machine", reason, remedy=remedy)) from None


@contextmanager
def watching(store: Store, world: World, timeout_seconds: int) -> Iterator[Stopping]:
    """A Stopping that watches during the block."""
    stopping = Stopping(store, world, timeout_seconds)
    try:
        yield stopping
    except RuntimeError as error:
        stopping.blame(error)
        raise
    finally:
        stopping.close()
