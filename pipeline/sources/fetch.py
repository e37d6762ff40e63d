"""Files from an address: tried again after network errors, checked against their SHA-256, and kept for the next run."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import requests
from tqdm import tqdm

from pipeline.base import files, locks
from pipeline.base.errors import Fault, UserError, without_secrets

WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds before the second try, the third, …
STALLED = 30  # seconds without a byte after which a try fails
SLOWEST = 1000  # bytes a second; a try that is slower fails, too: a server may send a few bytes a second without end
CHUNK = 1 << 10  # bytes between two looks at the clock; they take 1 s of CPU for 230 MB
LINE_SECONDS = 10  # between two lines about a download, where no terminal shows a progress bar

IMAGE_BYTES = 10**9  # the most of an image; the largest photos have 0.2 GB
WEIGHTS_BYTES = 10**10  # the most of published weights; the largest of torchvision have 2.6 GB


@dataclass(frozen=True)
class Purpose:
    """What a file is downloaded for: the stage, the params, and the remedies of its refusals."""

    stage: str  # its name is before each line
    key: str  # of the params: where the address comes from
    remedy: str  # if the download fails, or is too long
    hash_key: str  # of the params: where the SHA-256 comes from
    other_hash: str  # the remedy for another SHA-256


OTHER_WEIGHTS = "try again later; or fetch that file elsewhere and name it in train.weights"
WEIGHTS = Purpose("weights", "train.weights", OTHER_WEIGHTS, "train.weights", OTHER_WEIGHTS)
IMAGE = Purpose("predict", "IMAGE", "correct it; or fetch that file elsewhere and give its path", "", "")
ARCHIVE = Purpose(
    "download",
    "data.url",
    "correct it; or fetch that file elsewhere and set data.url: file:///path/to/it",
    "data.sha256",
    "get the right file, or set data.sha256 if you trust this one",
)


def obtain_archive(url: str, sha256: str, archives: Path, max_bytes: int) -> Path:
    """The path of an archive with this SHA-256: the file of a file:// address, or a download kept in `archives`.

    Raises UserError if it is missing, cannot be downloaded, has another hash, or is a download beyond `max_bytes`.
    """
    if not url.startswith("file://"):
        return download(url, archives / sha256, sha256, max_bytes, ARCHIVE)
    path = _local_path(url)
    _check_hash(path, str(path), sha256, ARCHIVE)
    return path


def obtain_weights(url: str, sha256_prefix: str, archives: Path) -> Path:
    """The path of published weights with a SHA-256 that begins with `sha256_prefix`. They are kept in `archives`.

    Raises UserError if they cannot be downloaded, or have another hash.
    """
    return download(url, archives / PurePosixPath(url).name, sha256_prefix, WEIGHTS_BYTES, WEIGHTS)


def download(url: str, target: Path, sha256: str, max_bytes: int, purpose: Purpose) -> Path:
    """Download to `target`, unless it is there with a SHA-256 that begins so. It appears only if its hash is right.

    After a lost connection, a timeout, status 429 or 5xx it is tried again, after each of WAITS seconds. Raises
    UserError for any other error, for more than `max_bytes`, for another hash, and after the last try.
    """
    with locks.exclusive(target.parent):  # trials of a sweep may need the same file at the same time
        for leftover in target.parent.glob(".*.partial"):  # from a run that was killed
            files.remove(leftover)
        if target.exists() and not (actual := files.sha256(target)).startswith(sha256):
            notice = f"{target} has SHA-256 {actual}: damaged, removed; downloading it again"
            print(f"{purpose.stage}: {notice}", file=sys.stderr)
            files.remove(target)
        if not target.exists():
            with files.atomic_file(target) as temporary:
                _get(url, temporary, max_bytes, purpose)
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


def _get(url: str, target: Path, max_bytes: int, purpose: Purpose) -> None:
    """Download to `target`, with the tries and errors of `download`."""
    visible_url = without_secrets(url)
    print(f"{purpose.stage}: getting {visible_url}", file=sys.stderr)
    for attempt, wait in enumerate([*WAITS, None], start=1):
        try:
            _try(url, target, max_bytes, purpose)
            return
        except (requests.RequestException, ValueError) as error:  # ValueError: a length that is no number
            reason = without_secrets(" ".join(str(error).split()))
            if wait is None or not _is_temporary(error):
                failure = f"cannot be downloaded (tries: {attempt}): {reason}"
                raise UserError(Fault(purpose.key, visible_url, "failed", failure, remedy=purpose.remedy)) from None
            print(f"{purpose.stage}: try {attempt} failed: {reason}; again in {wait:g} s", file=sys.stderr)
            time.sleep(wait)


def _try(url: str, target: Path, max_bytes: int, purpose: Purpose) -> None:
    """Download to `target` once, with a bar on a terminal, else with a line every LINE_SECONDS.

    Raises UserError for more than `max_bytes`, and an error of requests, also if the bytes come slower than SLOWEST.
    """
    # Otherwise a server could declare the archive's own gzip as an encoding, and it would be decompressed here.
    headers = {"Accept-Encoding": "identity"}
    with requests.get(url, headers=headers, stream=True, timeout=STALLED) as response, target.open("wb") as file:
        response.raise_for_status()
        total = int(response.headers.get("Content-Length", 0))
        start = last_line = time.monotonic()
        with tqdm(total=total or None, unit="B", unit_scale=True, disable=None) as bar:
            for content in response.iter_content(CHUNK):
                done, seconds = file.tell() + len(content), time.monotonic() - start
                if done > max_bytes:
                    reason = f"it sends more than {max_bytes:,} bytes"
                    raise UserError(Fault(purpose.key, without_secrets(url), "value", reason, remedy=purpose.remedy))
                if seconds > STALLED and done < SLOWEST * seconds:
                    raise requests.Timeout(f"{done:,} bytes in {seconds:.0f} s, which is too slow")
                file.write(content)
                bar.update(len(content))
                if bar.disable and start + seconds - last_line >= LINE_SECONDS:
                    last_line = start + seconds
                    of_all = f" of {total / 1e6:,.1f}" if total else ""
                    text = f"{done / 1e6:,.1f}{of_all} MB, {done / seconds / 1e6:,.1f} MB/s, {seconds:.0f} s"
                    print(f"{purpose.stage}: {text}", file=sys.stderr)


def _is_temporary(error: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return error.response.status_code == 429 or error.response.status_code >= 500
    return isinstance(error, requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError)
