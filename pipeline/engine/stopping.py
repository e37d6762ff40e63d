"""All processes stop at the same step, whoever is asked to, and none waits for one that is dead.

One thread a process watches three things: signals (TERM, INT, USR1, HUP: a handler only writes a byte to a socket), the
launcher (a dead one is a reason to stop and save), and the peers on this machine (a dead one is a reason to leave at
once, for an exchange with it would never end). Nothing is sent per step. Whoever has a reason to stop writes it into
the store of the process group; every process then publishes the next step it would take, and all stop before the
largest of them. So there is no margin to guess and no device to wait for.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.engine.world import Store, World, leave

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
GRACE_SECONDS = 25  # from the wish to stop to the end, whatever hangs; torchrun kills after 30


class Stopping:
    """Knows whether, and before which step, this process is to stop."""

    def __init__(self, store: Store, place: World) -> None:
        self._store, self._place = store, place
        self._next, self._stop = 0, None  # type: int, int | None
        self._holding = False  # a wish to stop is known: no step is begun until all agree on the last one
        self._done = False
        self._agreed = threading.Condition()
        self._ear, self._bell = socket.socketpair()
        self._bell.setblocking(False)
        self._before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        host = os.uname().nodename
        store.set(f"process/{place.rank}", f"{host} {os.getpid()}")
        self._watched = {self._ear.fileno(): "", os.pidfd_open(os.getppid()): "launcher"}
        for rank in range(place.size):
            peer_host, pid = store.get(f"process/{rank}").decode().rsplit(" ", 1)
            if rank != place.rank and peer_host == host:
                self._watched[os.pidfd_open(int(pid))] = f"process {rank} of {place.size} (pid {pid}) on {host}"
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

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

    def close(self) -> None:
        """End the watching; signals are as before. The thread is waited for: one inside the store aborts the exit."""
        self._done = True
        self._bell.send(b"\0")
        self._thread.join()
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.alarm(0)
        for descriptor in self._watched:
            if descriptor != self._ear.fileno():
                os.close(descriptor)
        self._ear.close()
        self._bell.close()

    def _watch(self) -> None:
        poll = select.poll()
        for descriptor in self._watched:
            poll.register(descriptor, select.POLLIN)
        why = ""
        while not self._done:
            for descriptor, _ in poll.poll(100):
                who = self._watched[descriptor]
                if who == "":
                    number = self._ear.recv(1)[0]
                    why = why or (signal.Signals(number).name if number in list(SIGNALS) else "")
                elif who == "launcher":
                    why = why or "its launcher ended"
                    poll.unregister(descriptor)
                else:
                    self._leave(who)
            if self._done:
                return
            try:
                if why and not self._holding:
                    self._store.compare_set("stop/why", "", f"process {self._place.rank}: {why}")
                self._agree()
            except RuntimeError:  # the store is gone, and rank 0 with it
                self._leave("process 0")

    def _leave(self, who: str) -> None:
        """End this process at once: an exchange with a dead peer would never end. Not while it is ending anyway."""
        if not self._done:
            leave(f"train: {who}", self._place)

    def _agree(self) -> None:
        """If somebody wants to stop: publish our next step, and once all have, stop before the largest."""
        if not self._holding and self._store.check(["stop/why"]):
            signal.alarm(GRACE_SECONDS)  # its default action ends the process without asking the interpreter
            with self._agreed:
                self._holding = True
                self._store.set(f"stop/{self._place.rank}", str(self._next))
        keys = [f"stop/{rank}" for rank in range(self._place.size)]
        if self._holding and self._stop is None and self._store.check(keys):
            with self._agreed:
                self._stop = max(int(self._store.get(key)) for key in keys)
                self._agreed.notify_all()


@contextmanager
def watching(store: Store, place: World) -> Iterator[Stopping]:
    """A Stopping for the length of the block."""
    stopping = Stopping(store, place)
    try:
        yield stopping
    except RuntimeError:
        time.sleep(1)  # an exchange with a process that died can fail before the thread sees the death, and leaves
        raise
    finally:
        stopping.close()
