"""All processes stop at the same step, whoever is asked to, and none waits for one that is dead or silent.

One thread a process watches three things: signals (TERM, INT, USR1, HUP: a handler only writes a byte to a socket), the
launcher (a dead or a stopped one is a reason to stop and save), and the peers on this machine (a dead one is a reason
to leave at once, for an exchange with it would never end). Nothing is sent per step. Whoever has a reason to stop
writes it into the store of the process group; every process then publishes the next step it would take, and all stop
before the largest of them. So there is no margin to guess and no device to wait for.

A second thread talks to the store, for a call waits as long as rank 0, which keeps it, says nothing: the first one
counts how long, and leaves.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.base.errors import UserError
from pipeline.engine import distributed, rendezvous, watchdog
from pipeline.engine.rendezvous import Store
from pipeline.engine.world import World

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
GRACE_SECONDS = 25  # from the wish to stop to the end, whatever hangs; torchrun kills after 30
LOOKS = 10  # a second


class Stopping:
    """Knows whether, and before which step, this process is to stop."""

    def __init__(self, store: Store, world: World, timeout_seconds: int) -> None:
        self._store, self._world, self._timeout = store, world, timeout_seconds
        self._next, self._stop = 0, None  # type: int, int | None
        self._holding = False  # a wish to stop is known: no step is begun until all agree on the last one
        self._done = False
        self._why = ""  # this process's own reason to stop
        self._talking = 0  # looks since the store answered last
        self._asking, self._present = False, set[int]()  # who answers when it is asked who is still there
        self._agreed, self._leaving = threading.Condition(), threading.Lock()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        self._launcher = os.getppid()
        self._peers = self._meet()
        self._watched = {self._wake_read.fileno(): -1, _watchable(self._launcher): world.rank}
        for rank, (host, pid) in enumerate(self._peers):
            if rank != world.rank and host == os.uname().nodename:
                self._watched[_watchable(pid)] = rank
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._watch, self._talk)]
        for thread in self._threads:
            thread.start()

    def _meet(self) -> list[tuple[str, int]]:
        """The host and the process id of every process, by rank."""
        said = rendezvous.gather_messages(self._store, self._world, "process", f"{os.uname().nodename} {os.getpid()}")
        return [(host, int(pid)) for host, pid in (line.rsplit(" ", 1) for line in said)]

    @property
    def reason(self) -> str:
        """Who wanted to stop, and why."""
        return self._store.get("stop/why").decode()

    def before(self, step: int) -> bool:
        """To be asked before every step; whether every process stops here, with `step` as the next to be taken."""
        with self._agreed:
            while self._holding and self._stop is None:
                self._agreed.wait()
            if self._stop is not None and step >= self._stop:
                return True
            self._next = step + 1
            return False

    def over(self) -> None:
        """From now on a peer may end: that is no reason to leave any more."""
        self._done = True

    def close(self) -> None:
        """End the watching; signals are as before. The threads are waited for: one inside the store aborts the exit."""
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
        if "launcher" in self._why and watchdog.stopped(self._launcher):
            watchdog.proceed(self._launcher)  # all is saved, and it has to say so

    def blame(self, error: RuntimeError) -> None:
        """Leave because an exchange failed, with the names of those that are silent. Returns if it failed by itself."""
        time.sleep(1)  # one that died is seen by the thread, which leaves
        if not distributed.is_peer_failure(error):
            return
        self._asking = True
        time.sleep(3)
        absent = sorted({*range(self._world.size)} - self._present - {self._world.rank})
        said = rendezvous.first_line(error)
        for rank in [0] if self._talking > LOOKS else absent:
            self._leave(rank, f"was silent ({said})")
        self._leaving.acquire()
        distributed.exit_because(f"train: an exchange with another process failed ({said})", self._world, -1)

    def _watch(self) -> None:
        poll = select.poll()
        for descriptor in self._watched:
            poll.register(descriptor, select.POLLIN)
        launcher, looks, held = watchdog.Silence(self._launcher), 0, 0
        while not self._done:
            heard = poll.poll(1000 // LOOKS)
            for descriptor, _ in heard:
                rank = self._watched[descriptor]
                if rank == -1:
                    number = self._wake_read.recv(1)[0]
                    self._wish(signal.Signals(number).name if number in list(SIGNALS) else "")
                elif rank == self._world.rank:
                    self._wish("its launcher ended")
                    poll.unregister(descriptor)
                elif not self._done:
                    self._leave(rank, "ended")
            looks, self._talking = looks + 1, self._talking + 1
            if looks % LOOKS == 0 and launcher.stopped < self._timeout:
                launcher.look()
                if launcher.stopped == self._timeout:
                    self._wish(f"its launcher (pid {launcher.pid}) was silent for {self._timeout} s: stopped (state T)")
            if self._talking > self._timeout * LOOKS and not self._done:
                self._leave(0, f"was silent for {self._timeout} s")
            held = held + 1 if self._holding and self._stop is None else 0
            if held > (GRACE_SECONDS - 5) * LOOKS:
                for rank in sorted({*range(self._world.size)} - self._present):
                    self._leave(rank, f"was silent for {GRACE_SECONDS - 5} s after a wish to stop")

    def _wish(self, why: str) -> None:
        """Want to stop, if there is a reason."""
        if why and not self._why:
            self._why = why
            signal.alarm(GRACE_SECONDS)  # its default action ends the process without asking the interpreter

    def _talk(self) -> None:
        try:
            while not self._done:
                if self._why and not self._holding:
                    self._store.compare_set("stop/why", "", f"process {self._world.rank}: {self._why}")
                self._agree()
                self._answer()
                self._talking = 0
                time.sleep(1 / LOOKS)
        except RuntimeError:  # the store is gone, and rank 0 with it
            if not self._done:
                self._leave(0, "ended")

    def _agree(self) -> None:
        """If somebody wants to stop: publish our next step, and once all have, stop before the largest."""
        if not self._holding and self._store.check(["stop/why"]):
            signal.alarm(GRACE_SECONDS)
            with self._agreed:
                self._holding = True
                self._store.set(f"stop/{self._world.rank}", str(self._next))
        if self._holding and self._stop is None:
            self._present = self._having("stop")
            if len(self._present) == self._world.size:
                with self._agreed:
                    self._stop = max(int(self._store.get(f"stop/{rank}")) for rank in self._present)
                    self._agreed.notify_all()

    def _answer(self) -> None:
        """If somebody asks who is still there: say so, and if it is this process that asks, see who does."""
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
        self._leaving.acquire()  # whoever comes second waits here for the end
        host, pid = self._peers[rank]
        here = host == os.uname().nodename
        if here and watchdog.stopped(pid):
            how += "; it is stopped (state T)"
        for _ in range(5 * LOOKS):  # until the launcher has seen how it ended, for that is to be named
            if not (here and watchdog.state(pid) == "Z"):
                break
            time.sleep(1 / LOOKS)
        if watchdog.stopped(self._launcher):
            watchdog.proceed(self._launcher)
        who = f"process {rank} of {self._world.size} (pid {pid}) on {host}"
        distributed.exit_because(f"train: {who} {how}", self._world, rank)


def _watchable(pid: int) -> int:
    """A descriptor that becomes readable when the process ends. Raises UserError if the system forbids it."""
    try:
        return os.pidfd_open(pid)
    except PermissionError:
        raise UserError(
            "pidfd_open is not permitted here, so processes cannot see that another one ends; allow it: a seccomp "
            "profile that knows it (Docker 20.10 or later), or docker run --security-opt seccomp=unconfined"
        ) from None


@contextmanager
def watching(store: Store, world: World, timeout_seconds: int) -> Iterator[Stopping]:
    """A Stopping for the length of the block."""
    stopping = Stopping(store, world, timeout_seconds)
    try:
        yield stopping
    except RuntimeError as error:
        stopping.blame(error)
        raise
    finally:
        stopping.close()
