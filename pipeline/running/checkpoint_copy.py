"""A copy of the working checkpoint at another place (`run.checkpoint_copy`), so that a run outlives its machine.

    <address>/<fingerprint of the run>/checkpoint.pt

The launcher of the first node makes it, so the training does not wait for it, and the last checkpoint of processes
that have died is copied, too. A copy gets its name when all of its bytes are there. The training checks the SHA-256 at
its end. The address is one that fsspec opens [filesystem_spec.readthedocs.io]: a folder, s3://, and others for which
its package is installed.
"""

import os
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
from pipeline.config.params import Params
from pipeline.config.params import Run as RunSettings

if TYPE_CHECKING:
    from pipeline.running.runs import Run

NONE = "none"
KEY = "run.checkpoint_copy"
PART = 8 * 2**20  # bytes that are sent at a time
CHECK_SECONDS, RETRY_SECONDS, FINISH_SECONDS = 1.0, 10.0, 60.0
DIGEST = 32  # bytes at the end of a checkpoint: the SHA-256 of the others (checkpoint.py)
Identity = tuple[int, int, int]


@contextmanager
def keep(config: Params, run: RunSettings) -> Iterator[None]:
    """Inside the block, each new checkpoint of the run of these params is copied; at its end, the last one.

    First the run gets the copy, if it has no checkpoint, or an older one. The copy is removed when the checkpoint is:
    not before dvc.lock records the model. `run`: config.run as it is on this node. Raises UserError if nothing can be
    written at the address. A copy that fails later is reported on stderr, and tried again.
    """
    if run.checkpoint_copy == NONE or run.node_rank > 0:
        yield
        return
    from pipeline.running import runs  # takes seconds, and most trainings have no copies

    this_run = runs.current(config)
    place = Place(run.checkpoint_copy, this_run)
    if this_run.is_recorded():  # a forced start: the training begins anew, and removes the checkpoint that is here
        place.clear()
        place.take_as_copied()
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
        self._reason = ""  # why the last try failed; empty if it did not
        with self._explained("machine", f"{NONE}, a folder, or what fsspec opens and these credentials can write"):
            import fsspec.core

            protocol = address.partition("://")[0] if "://" in address else "file"
            options = {"auto_mkdir": True} if protocol == "file" else {}
            self._files, folder = fsspec.core.url_to_fs(address, **options)
            self._folder = f"{folder.rstrip('/')}/{run.fingerprint}"
            self._copy = f"{self._folder}/{run.checkpoint.name}"
            if protocol == "file" and (links := [path for path in Path(self._folder).glob("*") if path.is_symlink()]):
                raise OSError(f"{links[0]} is a link, and what is behind it would be overwritten")
            # It says whose folder this is, and shows that files can be written there.
            self._files.pipe_file(f"{self._folder}/run", run.folder.name.encode())

    @contextmanager
    def _explained(self, kind: Kind, allowed: str) -> Iterator[None]:
        """Inside the block, an error of any of fsspec's packages becomes a UserError."""
        try:
            yield
        except Exception as error:
            raise UserError(Fault(KEY, self._shown, kind, one_line(error), allowed)) from None

    def clear(self) -> None:
        """Remove the copy, which is no longer needed. A failure is reported on stderr: it harms no training."""
        try:
            if self._files.exists(self._copy):
                self._files.rm_file(self._copy)
        except Exception as error:  # of any of fsspec's packages
            folder = f"{self._shown}/{self._run.fingerprint}"
            print(f"train: {KEY}: {folder} could not be emptied ({one_line(error)})", file=sys.stderr)

    def restore(self) -> None:
        """Fetch the copy, if there is no checkpoint here, or an older one. Raises UserError if it cannot be read."""
        own = self._run.checkpoint
        with self._explained("failed", f"{NONE}, to begin without it; or the same address again"):
            if not self._files.exists(self._copy):
                return
            is_equal = own.is_file() and self._files.cat_file(self._copy, start=-DIGEST) == own.read_bytes()[-DIGEST:]
            if own.is_file() and not is_equal and self._files.modified(self._copy).timestamp() <= own.stat().st_mtime:
                return
            if not is_equal:
                with files.atomic_file(own) as temporary:
                    self._files.get_file(self._copy, str(temporary))
                print(f"train: {own} comes from {KEY} ({self._shown})", file=sys.stderr)
        self.take_as_copied()

    def take_as_copied(self) -> None:
        """Do not copy the checkpoint that is here now."""
        if self._run.checkpoint.is_file():
            with self._run.checkpoint.open("rb") as source:
                self._copied = identity_of(source)

    def follow(self, is_over: threading.Event) -> None:
        """Copy each new checkpoint, until `is_over` is set."""
        while not is_over.wait(RETRY_SECONDS if self._reason else CHECK_SECONDS):
            self._try()

    def finish(self) -> None:
        """Copy the newest checkpoint, if it is not there yet; try it for FINISH_SECONDS."""
        end = time.monotonic() + FINISH_SECONDS
        self._try()
        while self._reason and time.monotonic() < end:
            time.sleep(RETRY_SECONDS)
            self._try()
        if self._reason:
            print(f"train: {KEY}: the newest checkpoint is not at {self._shown} ({self._reason})", file=sys.stderr)

    def _try(self) -> None:
        """Copy the checkpoint, if it is a new one. The first failure in a row is printed."""
        if not self._run.checkpoint.exists():  # there is none yet, or none any more
            self._reason = ""
            return
        try:
            # The training replaces the file by another one. This one stays the same while it is open.
            with self._run.checkpoint.open("rb") as source:
                newest = identity_of(source)
                if newest != self._copied:
                    self._send(source)
        except Exception as error:  # of any of fsspec's packages
            if not self._reason:
                print(f"train: {KEY}: {self._shown}: {one_line(error)}; it is tried again", file=sys.stderr)
            self._reason = one_line(error)
        else:
            self._copied, self._reason = newest, ""

    def _send(self, source: BinaryIO) -> None:
        """Copy the file. It gets its name when all of its bytes are there."""
        partial = f"{self._folder}/partial"
        with self._files.open(partial, "wb") as target:
            shutil.copyfileobj(source, target, PART)
        self._files.invalidate_cache()
        sent, arrived = os.fstat(source.fileno()).st_size, self._files.info(partial)["size"]
        if arrived != sent:
            raise OSError(f"{arrived} of {sent} bytes have arrived")
        self._files.mv(partial, self._copy)


def identity_of(file: BinaryIO) -> Identity:
    """What tells an open file from the one that replaces it."""
    status = os.fstat(file.fileno())
    return status.st_ino, status.st_mtime_ns, status.st_size
