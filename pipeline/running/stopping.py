"""All processes stop before the same step, and no process waits for one that is dead or silent.

One thread per process watches three things:
- signals (TERM, INT, USR1, HUP): the handler only writes a byte to a socket;
- the launcher: if it is dead, the process requests a stop;
- the other processes on this machine: if one is dead, this process exits at once, because an exchange with the dead
  one would never end.

No step sends a message. A process that requests a stop writes its reason into the store of the process group. Then
every process publishes its next step, and all stop before the largest of these steps. So no process waits for the
device.

A second thread calls the store. Rank 0 hosts the store, so a call waits while rank 0 is silent. The first thread counts
the seconds without an answer. After the timeout it ends the process.
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
from pipeline.learning.world import World
from pipeline.running import group, rendezvous, watchdog
from pipeline.running.exits import GRACE_SECONDS, SIGNALS
from pipeline.running.rendezvous import Store

CHECKS_PER_SECOND = 10


class HasStep(Protocol):
    """A batch of one step."""

    @property
    def step(self) -> int: ...


Item = TypeVar("Item", bound=HasStep)


class Stopping:
    """Decides whether, and before which step, this process must stop."""

    def __init__(self, store: Store, world: World, timeout_seconds: int) -> None:
        self._store, self._world, self._timeout = store, world, timeout_seconds
        self._next_step = 0
        self._stop_step: int | None = None  # all processes stop before it
        self._stop_requested = False  # by any process: begin no step until all agree on the last one
        self._is_over = False
        self._local_reason = ""  # of this process, to stop
        self._is_announced = not world.is_main  # whether the user knows that the training will stop
        self._silent_checks = 0  # checks since the last answer of the store
        self._check_liveness = False  # whether to ask which processes are alive
        self._responded = set[int]()  # the ranks that answered
        self._agreement, self._exit_lock, self._print_lock = threading.Condition(), threading.Lock(), threading.Lock()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._previous_handlers = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        self._peers = self._exchange_pids()
        self._rank_of_descriptor = {self._wake_read.fileno(): -1, _open_pidfd(os.getppid()): world.rank}
        for rank, (host, pid) in enumerate(self._peers):
            if rank != world.rank and host == os.uname().nodename:
                self._rank_of_descriptor[_open_pidfd(pid)] = rank
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._event_loop, self._store_loop)]
        for thread in self._threads:
            thread.start()

    def _exchange_pids(self) -> list[tuple[str, int]]:
        """The host and the process id of every process, by rank."""
        text = f"{os.uname().nodename} {os.getpid()}"
        messages = rendezvous.gather_messages(self._store, self._world, "process", text)
        return [(host, int(pid)) for host, pid in (message.rsplit(" ", 1) for message in messages)]

    @property
    def reason(self) -> str:
        """Which process wanted to stop, and why."""
        return self._store.get("stop/reason").decode()

    def must_stop(self, step: int) -> bool:
        """Whether all processes stop before `step`. Call it before every step."""
        with self._agreement:
            while self._stop_requested and self._stop_step is None:
                self._agreement.wait()
            if self._stop_step is not None and step >= self._stop_step:
                return True
            self._next_step = step + 1
            return False

    def until_stop(self, batches: Iterable[Item]) -> Iterator[Item]:
        """The batches, one per step, until all processes have agreed to stop."""
        for batch in batches:
            if self.must_stop(batch.step):
                return
            yield batch

    def finish(self) -> None:
        """Mark the training as finished: from now on, this process does not exit because another one ends."""
        self._is_over = True

    def close(self) -> None:
        """End both threads and restore the signal handlers. A thread that calls the store would abort the exit."""
        self.finish()
        self._wake_write.send(b"\0")
        for thread in self._threads:
            thread.join(self._timeout)
        if any(thread.is_alive() for thread in self._threads):
            self._leave(0, f"was silent for {self._timeout} s")
        signal.set_wakeup_fd(-1)
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        signal.alarm(0)
        for descriptor in self._rank_of_descriptor:
            if descriptor != self._wake_read.fileno():
                os.close(descriptor)
        self._wake_read.close()
        self._wake_write.close()

    def blame(self, error: RuntimeError) -> None:
        """Exit and name the silent processes, if another process made the exchange fail; otherwise return."""
        time.sleep(1)  # if a process died, the first thread notices it in this time, and exits
        if not group.is_peer_failure(error):
            return
        self._check_liveness = True
        time.sleep(3)
        absent = sorted({*range(self._world.size)} - self._responded - {self._world.rank})
        message = rendezvous.first_line(error)
        for rank in [0] if self._silent_checks > CHECKS_PER_SECOND else absent:
            self._leave(rank, f"was silent ({message})")
        self._exit_lock.acquire()
        group.exit_because(f"train: an exchange with another process failed ({message})", self._world, -1)

    def _event_loop(self) -> None:
        """The first thread: signals, the launcher, the other processes, and how long the store is silent."""
        poll = select.poll()
        for descriptor in self._rank_of_descriptor:
            poll.register(descriptor, select.POLLIN)
        waiting_checks = 0
        while not self._is_over:
            for descriptor, _ in poll.poll(1000 // CHECKS_PER_SECOND):
                rank = self._rank_of_descriptor[descriptor]
                if rank == -1:
                    number = self._wake_read.recv(1)[0]
                    self._request_stop(signal.Signals(number).name if number in list(SIGNALS) else "")
                elif rank == self._world.rank:
                    self._request_stop("its launcher ended")
                    poll.unregister(descriptor)
                elif not self._is_over:
                    self._leave(rank, "ended")
            self._silent_checks += 1
            if self._silent_checks > self._timeout * CHECKS_PER_SECOND and not self._is_over:
                self._leave(0, f"was silent for {self._timeout} s")
            if self._stop_requested and self._stop_step is None:
                waiting_checks += 1
            else:
                waiting_checks = 0
            if waiting_checks > (GRACE_SECONDS - 5) * CHECKS_PER_SECOND:
                for rank in sorted({*range(self._world.size)} - self._responded):
                    self._leave(rank, f"was silent for {GRACE_SECONDS - 5} s after a request to stop")

    def _request_stop(self, reason: str) -> None:
        """Store the reason to stop, if it is the first."""
        if reason and not self._local_reason:
            self._local_reason = reason
            signal.alarm(GRACE_SECONDS)  # its default action ends the process even if Python hangs
            self._announce()

    def _announce(self) -> None:
        """Print once, on rank 0, that the training will stop. Do not wait for a reader of stderr that does not read."""
        with self._print_lock, suppress(OSError):  # both threads call this; stderr may be closed
            if not self._is_announced and select.select([], [2], [], 0)[1]:
                self._is_announced = True
                line_break = "\n" if os.isatty(2) else ""  # after the progress bar
                text = f"{line_break}train: stopping after this step, and saving it; the next run goes on from there\n"
                os.write(2, text.encode())

    def _store_loop(self) -> None:
        """The second thread: all calls to the store."""
        try:
            while not self._is_over:
                if self._local_reason and not self._stop_requested:
                    self._store.compare_set("stop/reason", "", f"process {self._world.rank}: {self._local_reason}")
                self._agree_on_step()
                self._answer_liveness_check()
                self._silent_checks = 0
                time.sleep(1 / CHECKS_PER_SECOND)
        except RuntimeError:  # the store has ended with rank 0
            if not self._is_over:
                self._leave(0, "ended")

    def _agree_on_step(self) -> None:
        """If a process wants to stop: publish our next step. Once all have, stop before the largest."""
        if not self._stop_requested and self._store.check(["stop/reason"]):
            signal.alarm(GRACE_SECONDS)
            with self._agreement:
                self._stop_requested = True
                self._store.set(f"stop/{self._world.rank}", str(self._next_step))
            self._announce()
        if self._stop_requested and self._stop_step is None:
            self._responded = self._ranks_that_wrote("stop")
            if len(self._responded) == self._world.size:
                with self._agreement:
                    self._stop_step = max(int(self._store.get(f"stop/{rank}")) for rank in self._responded)
                    self._agreement.notify_all()

    def _answer_liveness_check(self) -> None:
        """Answer a liveness check. If this process started it, collect the ranks that answered."""
        if self._check_liveness:
            self._store.set("liveness/call", "")
            self._responded = self._ranks_that_wrote("liveness")
        if self._store.check(["liveness/call"]):
            self._store.set(f"liveness/{self._world.rank}", "")

    def _ranks_that_wrote(self, name: str) -> set[int]:
        """The ranks whose entry `name/rank` is in the store."""
        return {rank for rank in range(self._world.size) if self._store.check([f"{name}/{rank}"])}

    def _leave(self, rank: int, cause: str) -> None:
        """End this process at once: an exchange with a dead or silent peer would never end."""
        self._exit_lock.acquire()  # a second thread waits here until the process ends
        host, pid = self._peers[rank]
        is_local = host == os.uname().nodename
        if is_local and watchdog.is_stopped(pid):
            cause += "; it is stopped (state T)"
        for _ in range(5 * CHECKS_PER_SECOND):  # until the launcher has read its exit status, to report it
            if not (is_local and watchdog.state(pid) == "Z"):
                break
            time.sleep(1 / CHECKS_PER_SECOND)
        process = f"process {rank} of {self._world.size} (pid {pid}) on {host}"
        group.exit_because(f"train: {process} {cause}", self._world, rank)


def _open_pidfd(pid: int) -> int:
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
def open_stopping(store: Store, world: World, timeout_seconds: int) -> Iterator[Stopping]:
    """A Stopping whose threads run during the block."""
    stopping = Stopping(store, world, timeout_seconds)
    try:
        yield stopping
    except RuntimeError as error:
        stopping.blame(error)
        raise
    finally:
        stopping.close()
