"""Files from an address: tried again after network errors, checked against their SHA-256, and kept for the next run."""

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote

import pooch
import requests
from tqdm import tqdm

from pipeline.base import files, locks
from pipeline.base.errors import Fault, UserError, without_secrets

WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds before the second try, the third, …
STALLED = 30  # seconds without a byte after which a try fails
CHUNK = 1 << 18
LINE_SECONDS = 10  # between two lines about a download, where no terminal shows a progress bar
NO_LIMIT = 10**15  # bytes
WEIGHTS_BYTES = 10**10  # the most of published weights; the largest of torchvision have 2.6 GB


@dataclass(frozen=True)
class Purpose:
    """What a file is fetched for, and the words of its refusals."""

    stage: str  # whose name is before each line
    key: str  # of the params: where the address comes from
    remedy: str  # without the network
    too_long: str  # the remedy for a file that is longer than any right one
    hash_key: str  # of the params: where the SHA-256 comes from
    other_hash: str  # the remedy for another file


GO_ON = "to go on without the network: fetch that file elsewhere and"
ARCHIVE = Purpose(
    "download",
    "data.url",
    f"{GO_ON} set data.url: file:///path/to/it",
    "correct data.url",
    "data.sha256",
    "get the right file, or set data.sha256 if you trust this one",
)
WEIGHTS = Purpose(
    "weights",
    "train.weights",
    f"{GO_ON} name it in train.weights",
    f"something answers in the place of their server; {GO_ON} name it in train.weights",
    "train.weights",
    f"try again later; {GO_ON} name it in train.weights",
)


def obtain_archive(url: str, sha256: str, archives: Path, waits: Sequence[float] = WAITS, most: int = NO_LIMIT) -> Path:
    """The path of an archive with this SHA-256: the file of a file:// address, or a download kept in `archives`.

    Raises UserError if it is missing, cannot be downloaded, has more than `most` bytes, or has another hash.
    """
    if not url.startswith("file://"):
        return download(url, archives / sha256, sha256, waits, most)
    path = _local_path(url)
    _check_hash(path, str(path), sha256, ARCHIVE)
    return path


def obtain_weights(url: str, sha256_prefix: str, archives: Path, waits: Sequence[float] = WAITS) -> Path:
    """The path of published weights with a SHA-256 that begins with `sha256_prefix`. They are kept in `archives`.

    Raises UserError if they cannot be downloaded, or have another hash.
    """
    return download(url, archives / PurePosixPath(url).name, sha256_prefix, waits, WEIGHTS_BYTES, WEIGHTS)


def download(
    url: str,
    target: Path,
    sha256: str,
    waits: Sequence[float] = WAITS,
    most: int = NO_LIMIT,
    purpose: Purpose = ARCHIVE,
) -> Path:
    """Download to `target`, unless it is there with a SHA-256 that begins so. It appears only if its hash is right.

    After a lost connection, a timeout, status 429 or 5xx it is tried again, after each of `waits` seconds. Raises
    UserError for any other error, for more than `most` bytes, for another hash, and after the last try.
    """
    with locks.exclusive(target.parent):  # trials of a sweep may need the same file at the same time
        for leftover in target.parent.glob(".*.partial"):  # from a run that was killed
            files.remove(leftover)
        if target.exists() and not (actual := files.sha256(target)).startswith(sha256):
            said = f"{target} has SHA-256 {actual}: damaged, removed; downloading it again"
            print(f"{purpose.stage}: {said}", file=sys.stderr)
            files.remove(target)
        if not target.exists():
            with files.atomic_file(target) as temporary:
                _get(url, temporary, waits, purpose, most)
                _check_hash(temporary, without_secrets(url), sha256, purpose)
    return target


def _check_hash(path: Path, where: str, sha256: str, purpose: Purpose) -> None:
    """Raise UserError unless the SHA-256 of a file, which comes from `where`, begins so."""
    if not (actual := files.sha256(path)).startswith(sha256):
        reason = f"{where} has SHA-256 {actual}"
        raise UserError(Fault(purpose.hash_key, sha256, "differs", reason, remedy=purpose.other_hash))


def _local_path(url: str) -> Path:
    """The path of a file:// address. Raises UserError if there is no such file."""
    path = Path(unquote(url.removeprefix("file://")))
    if not path.is_absolute():
        allowed = "file:// and a path from the root, file:///home/…"
        raise UserError(Fault("data.url", without_secrets(url), "value", "no full path", allowed))
    if not os.path.isfile(path):  # noqa: PTH113  Path.is_file raises OSError for a name that is too long
        reason, allowed = "there is no such file, or no access to it", "an existing archive (a space is %20)"
        raise UserError(Fault("data.url", without_secrets(url), "missing", reason, allowed))
    return path


def _get(url: str, target: Path, waits: Sequence[float], purpose: Purpose, most: int) -> None:
    """Download to `target`, with the tries and errors of `download`."""
    shown = without_secrets(url)
    endless = Fault(purpose.key, shown, "value", f"it sends more than {most:,} bytes", remedy=purpose.too_long)
    print(f"{purpose.stage}: getting {shown}", file=sys.stderr)
    for attempt, wait in enumerate([*waits, None], start=1):
        try:
            with target.open("wb") as file, progress(purpose.stage) as bar:
                client = pooch.HTTPDownloader(
                    progressbar=bar,
                    chunk_size=CHUNK,
                    timeout=STALLED,
                    # Otherwise a server could declare the archive's own gzip as an encoding, and it would be
                    # decompressed here.
                    headers={"Accept-Encoding": "identity"},
                )
                client(url, Limited(file, most, endless), None)
            return
        except (requests.RequestException, ValueError) as error:  # ValueError: a length that is no number
            if isinstance(error, requests.HTTPError) and error.response is not None:
                error.response.close()  # pooch leaves its connection open
            reason = without_secrets(" ".join(str(error).split()))
            if wait is None or not _is_temporary(error):
                failure = f"cannot be downloaded (tries: {attempt}): {reason}"
                raise UserError(Fault(purpose.key, shown, "failed", failure, remedy=purpose.remedy)) from None
            print(f"{purpose.stage}: try {attempt} failed: {reason}; again in {wait:g} s", file=sys.stderr)
            time.sleep(wait)


class Limited:
    """What pooch writes to: a file that takes at most so many bytes. An answer may have no end."""

    def __init__(self, file: BinaryIO, most: int, fault: Fault) -> None:
        self._file, self._left, self._fault = file, most, fault

    def write(self, content: bytes) -> None:
        """Write to the file. Raises UserError if that would be too much."""
        self._left -= len(content)
        if self._left < 0:
            raise UserError(self._fault)
        self._file.write(content)

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def progress(stage: str) -> Iterator["tqdm[Any] | ProgressLines"]:
    """What pooch takes for a progress bar: one on a terminal, else lines. It moves on also while no byte comes."""
    is_bar = sys.stderr.isatty() and not os.environ.get("CI")
    bar: Any = Bar(ncols=79, unit="B", unit_scale=True) if is_bar else ProgressLines(stage)
    ended = threading.Event()

    def move_on() -> None:
        while not ended.wait(1 if is_bar else LINE_SECONDS):
            bar.refresh()

    thread = threading.Thread(target=move_on, daemon=True)
    thread.start()
    try:
        yield bar
    finally:
        ended.set()
        thread.join()
        bar.close()


class Bar(tqdm):  # type: ignore[type-arg]
    """A progress bar that is true: pooch asks for its truth before it sets the total, and tqdm has none without it."""

    def __bool__(self) -> bool:
        return True


class ProgressLines:
    """What pooch takes for a progress bar: prints a line every LINE_SECONDS, after the name of the stage."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self.total, self._done = 0, 0  # bytes; pooch sets the total, 0 if the server does not say it
        self._began = self._printed = time.monotonic()

    def update(self, size: int) -> None:
        """Count `size` more bytes."""
        self._done += size
        self.refresh()

    def refresh(self) -> None:
        """Print a line if the last one was long ago."""
        now = time.monotonic()
        if now - self._printed >= LINE_SECONDS:
            self._printed = now
            whole = f" of {self.total / 1e6:,.1f}" if self.total else ""
            seconds = now - self._began
            rate = self._done / max(seconds, 1e-3) / 1e6
            print(
                f"{self._stage}: {self._done / 1e6:,.1f}{whole} MB, {rate:,.1f} MB/s, {seconds:.0f} s", file=sys.stderr
            )

    def reset(self) -> None:
        """Begin to count anew. pooch does this at the end, and then adds the total."""
        self._done, self._printed = 0, time.monotonic()

    def close(self) -> None: ...


def _is_temporary(error: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return error.response.status_code == 429 or error.response.status_code >= 500
    return isinstance(error, requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError)
