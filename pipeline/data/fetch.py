"""Files from an address: tried again after network errors, checked against their SHA-256, and kept for the next run."""

import errno
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import pooch
import requests

from pipeline.base import files
from pipeline.base.errors import UserError

WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds before the second try, the third, …
STALLED = 30  # seconds without a byte after which a try fails
CHUNK = 1 << 20
LINE_SECONDS = 10  # between two lines about a download, where no terminal shows a progress bar


@dataclass(frozen=True)
class Purpose:
    """What a file is fetched for."""

    stage: str  # whose name is before each line
    key: str  # of the params, with which an error begins
    remedy: str


GO_ON = "to go on without the network: fetch that file elsewhere and"
ARCHIVE = Purpose("download", "data.url", f"{GO_ON} set data.url: file:///path/to/it")
WEIGHTS = Purpose("weights", "train.weights", f"{GO_ON} name it in train.weights")


def obtain_archive(url: str, sha256: str, archives: Path, waits: Sequence[float] = WAITS) -> Path:
    """The path of an archive with this SHA-256: the file of a file:// address, or a download kept in `archives`.

    Raises UserError if it is missing, cannot be downloaded, or has another hash.
    """
    for leftover in archives.glob(".*.partial"):  # from a run that was killed
        files.remove(leftover)
    if url.startswith("file://"):
        path = _local_path(url)
        if (actual := files.sha256(path)) != sha256:
            raise UserError(_wrong_hash(str(path), actual, sha256))
        return path
    target = archives / sha256
    if target.exists() and (actual := files.sha256(target)) != sha256:
        print(
            f"{ARCHIVE.stage}: {target} has SHA-256 {actual}: damaged, removed; downloading it again", file=sys.stderr
        )
        files.remove(target)
    if not target.exists():
        download(url, target, sha256, waits)
    return target


def obtain_weights(url: str, sha256_prefix: str, archives: Path, waits: Sequence[float] = WAITS) -> Path:
    """The path of published weights with a SHA-256 that begins with `sha256_prefix`. They are kept in `archives`.

    Raises UserError if they cannot be downloaded, or have another hash.
    """
    target = archives / PurePosixPath(url).name
    if target.exists() and not files.sha256(target).startswith(sha256_prefix):
        print(
            f"{WEIGHTS.stage}: {target} has another hash than its name: damaged, removed; downloading it again",
            file=sys.stderr,
        )
        files.remove(target)
    if not target.exists():
        with files.atomic_file(target) as temporary:
            _get(url, temporary, waits, WEIGHTS)
            if not (actual := files.sha256(temporary)).startswith(sha256_prefix):
                raise UserError(
                    f"train.weights: {url} has SHA-256 {actual}, its name promises {sha256_prefix}…; "
                    f"nothing was kept; try again later; {WEIGHTS.remedy}"
                )
    return target


def download(url: str, target: Path, sha256: str, waits: Sequence[float] = WAITS) -> None:
    """Download to `target`, which appears only if its hash is right.

    After a lost connection, a timeout, status 429 or 5xx it is tried again, after each of `waits` seconds. Raises
    UserError for any other error, and after the last try.
    """
    with files.atomic_file(target) as temporary:
        _get(url, temporary, waits, ARCHIVE)
        if (actual := files.sha256(temporary)) != sha256:
            raise UserError(_wrong_hash(url, actual, sha256))


def _local_path(url: str) -> Path:
    """The path of a file:// address. Raises UserError if there is no such file."""
    path = Path(unquote(url.removeprefix("file://")))
    if not path.is_absolute():
        raise UserError(
            f"data.url: {url!r} has no full path; allowed: file:// and a path from the root, file:///home/…"
        )
    try:
        exists = path.is_file()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        exists = False
    if not exists:
        raise UserError(f"data.url: {url!r}: there is no such file; allowed: an existing archive (a space is %20)")
    return path


def _get(url: str, target: Path, waits: Sequence[float], purpose: Purpose) -> None:
    """Download to `target`, with the tries and errors of `download`."""
    print(f"{purpose.stage}: getting {url}", file=sys.stderr)
    for attempt, wait in enumerate([*waits, None], start=1):
        client = pooch.HTTPDownloader(
            progressbar=(sys.stderr.isatty() and not os.environ.get("CI")) or ProgressLines(purpose.stage),
            chunk_size=CHUNK,
            timeout=STALLED,
            # Otherwise a server could declare the archive's own gzip as an encoding, and it would be decompressed here.
            headers={"Accept-Encoding": "identity"},
        )
        try:
            client(url, str(target), None)
            return
        except requests.RequestException as error:
            reason = " ".join(str(error).split())
            if not _is_temporary(error):
                raise UserError(f"{purpose.key}: {url!r} cannot be downloaded: {reason}; {purpose.remedy}") from None
            if wait is None:
                raise UserError(
                    f"{purpose.key}: {url!r}: {attempt} tries failed, the last: {reason}; {purpose.remedy}"
                ) from None
            print(f"{purpose.stage}: try {attempt} failed: {reason}; again in {wait:g} s", file=sys.stderr)
            time.sleep(wait)


class ProgressLines:
    """What pooch takes for a progress bar: prints a line every LINE_SECONDS, after the name of the stage."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self.total, self._done = 0, 0  # bytes; pooch sets the total, 0 if the server does not say it
        self._began = self._printed = time.monotonic()

    def update(self, size: int) -> None:
        """Count `size` more bytes, and print a line if the last one was long ago."""
        self._done += size
        now = time.monotonic()
        if now - self._printed >= LINE_SECONDS:
            self._printed = now
            whole = f" of {self.total / 1e6:,.1f}" if self.total else ""
            rate = self._done / (now - self._began) / 1e6
            print(f"{self._stage}: {self._done / 1e6:,.1f}{whole} MB, {rate:,.1f} MB/s", file=sys.stderr)

    def reset(self) -> None:
        """Begin to count anew. pooch does this at the end, and then adds the total."""
        self._done, self._printed = 0, time.monotonic()

    def close(self) -> None: ...


def _is_temporary(error: requests.RequestException) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return error.response.status_code == 429 or error.response.status_code >= 500
    return isinstance(error, requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError)


def _wrong_hash(where: str, actual: str, expected: str) -> str:
    return (
        f"data.sha256: {where} has SHA-256 {actual}, expected {expected}; "
        f"nothing was unpacked; get the right file, or set data.sha256 if you trust this one"
    )
