"""Copies of the working checkpoint at another place (`run.checkpoint_copy`), so that a run outlives its machine.

    <address>/<fingerprint of the run>/checkpoint-<number>.pt       the newest two

The launcher of the first node makes them, so the training does not wait for them, and the last checkpoint of processes
that have died is copied, too. A copy gets its name when all of its bytes are there. The training checks the SHA-256 at
its end. The address is one that fsspec opens [filesystem_spec.readthedocs.io]: a folder, s3://, and others for which
its package is installed.
"""

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pipeline.base import files
from pipeline.base.errors import Fault, Kind, UserError, one_line, without_secrets
from pipeline.config import identity
from pipeline.config.params import Params
from pipeline.config.params import Run as RunSettings
from pipeline.data import packed

if TYPE_CHECKING:
    from pipeline.training.runs import Run

NONE = "none"
KEY = "run.checkpoint_copy"
NAME = re.compile(r"checkpoint-(\d+)\.pt")
PART = 8 * 2**20  # bytes that are sent at a time
CHECK_SECONDS, RETRY_SECONDS = 1.0, 10.0
KEPT = 2
Identity = tuple[int, int, int]


@contextmanager
def keep(config: Params, run: RunSettings) -> Iterator[None]:
    """Inside the block, each new checkpoint of the run of these params is copied; at its end, the newest one.

    First a run that has no checkpoint here gets the newest copies, if there are some. The copies go when the checkpoint
    goes. `run`: config.run as it is on this node. Raises UserError if nothing can be written at the address. A copy
    that fails later is reported on stderr, and tried again.
    """
    if run.checkpoint_copy == NONE or run.node_rank > 0:
        yield
        return
    from pipeline.training import runs  # imports torch, which takes seconds

    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    this_run = runs.find_run(config, identity.digest(identity.training_parts(config, data.digest)))
    place = Place(run.checkpoint_copy, this_run)
    if this_run.is_recorded():  # a forced start trains again
        place.clear()
    else:
        place.restore()
    is_over = threading.Event()
    thread = threading.Thread(target=place.follow, args=(is_over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        place.finish()
    if not this_run.has_checkpoint():
        place.clear()


class Place:
    """Where the checkpoints of a run are copied to."""

    def __init__(self, address: str, run: "Run") -> None:
        """Raises UserError if nothing can be written there."""
        self._run, self._shown = run, without_secrets(address)
        self._copied: Identity | None = None  # the checkpoint that was copied last
        self._next_try, self._reason = 0.0, ""
        with self._explained("machine", f"{NONE}, a folder, or what fsspec opens and these credentials can write"):
            import fsspec.core

            protocol = address.partition("://")[0] if "://" in address else "file"
            options = {"auto_mkdir": True} if protocol == "file" else {}
            self._files, folder = fsspec.core.url_to_fs(address, **options)
            self._folder = f"{folder.rstrip('/')}/{run.fingerprint}"
            # It says whose folder this is, and shows that files can be written there.
            self._files.pipe_file(f"{self._folder}/run", run.folder.name.encode())

    @contextmanager
    def _explained(self, kind: Kind, allowed: str) -> Iterator[None]:
        """Inside the block, an error of any of fsspec's packages becomes a UserError."""
        try:
            yield
        except Exception as error:
            raise UserError(Fault(KEY, self._shown, kind, without_secrets(one_line(error)), allowed)) from None

    def _names(self) -> dict[int, str]:
        """The copies by their numbers."""
        self._files.invalidate_cache()
        names = (str(path).rpartition("/")[2] for path in self._files.ls(self._folder, detail=False))
        return {int(match[1]): f"{self._folder}/{name}" for name in names if (match := NAME.fullmatch(name))}

    def clear(self) -> None:
        """Remove the copies, which are no longer needed. A failure is reported on stderr: it harms no training."""
        try:
            for name in self._names().values():
                self._files.rm_file(name)
        except Exception as error:  # of any of fsspec's packages
            reason = without_secrets(one_line(error))
            print(f"train: {KEY}: the copies at {self._shown} are not removed ({reason})", file=sys.stderr)

    def restore(self) -> None:
        """Fetch the newest copies, if there is no checkpoint here. Raises UserError if one cannot be read.

        The training takes the newest of them that is not damaged, as it does with its own.
        """
        if self._run.has_checkpoint():
            return
        with self._explained("failed", f"{NONE}, to begin without it; or the same address again"):
            names = self._names()
            newest = sorted(names, reverse=True)[:KEPT]
            for number, path in zip(newest, self._run.checkpoints, strict=False):
                with files.atomic_file(path) as temporary:
                    self._files.get_file(names[number], str(temporary))
                print(f"train: {path} comes from {KEY} ({self._shown})", file=sys.stderr)
        if newest:
            with self._run.checkpoint.open("rb") as source:
                self._copied = identity_of(source)

    def follow(self, is_over: threading.Event) -> None:
        """Copy each new checkpoint, until `is_over` is set."""
        while not is_over.wait(CHECK_SECONDS):
            if time.monotonic() >= self._next_try:
                self._try()

    def finish(self) -> None:
        """Copy the newest checkpoint, if it is not there yet."""
        self._try()
        if self._reason:
            print(f"train: {KEY}: the newest checkpoint is not at {self._shown} ({self._reason})", file=sys.stderr)

    def _try(self) -> None:
        """Copy the checkpoint, if it is a new one. The first failure in a row is printed."""
        try:
            source = self._run.checkpoint.open("rb")
        except FileNotFoundError:  # the training has no checkpoint yet, or has finished
            self._reason = ""
            return
        with source:
            # The training replaces the file by another one. This one stays the same while it is open.
            newest = identity_of(source)
            if newest == self._copied:
                return
            try:
                self._copy(source)
            except Exception as error:  # of any of fsspec's packages
                if not self._reason:
                    print(
                        f"train: {KEY}: {self._shown}: {without_secrets(one_line(error))}; trying again",
                        file=sys.stderr,
                    )
                self._next_try, self._reason = time.monotonic() + RETRY_SECONDS, without_secrets(one_line(error))
            else:
                self._copied, self._reason = newest, ""

    def _copy(self, source: BinaryIO) -> None:
        """Copy the file under the next number, and remove the copies before the newest two."""
        names = self._names()
        name, partial = f"{self._folder}/checkpoint-{max(names, default=0) + 1}.pt", f"{self._folder}/partial"
        with self._files.open(partial, "wb") as target:
            shutil.copyfileobj(source, target, PART)
        sent, arrived = os.fstat(source.fileno()).st_size, self._files.info(partial)["size"]
        if arrived != sent:
            raise OSError(f"{arrived} of {sent} bytes have arrived")
        self._files.mv(partial, name)
        for number in sorted(names)[: 1 - KEPT]:
            self._files.rm_file(names[number])


def identity_of(file: BinaryIO) -> Identity:
    """What tells an open file from the one that replaces it."""
    status = os.fstat(file.fileno())
    return status.st_ino, status.st_mtime_ns, status.st_size
