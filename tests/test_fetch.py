"""A file from an address is the right one or is refused; after a temporary error it is tried again."""

import hashlib
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote

import pytest

from pipeline.base.errors import Kind, UserError
from pipeline.sources import fetch
from tests.helpers.refusals import refuses
from tests.helpers.sources import BODY, NO_WAITS, reply, server
from tests.helpers.terminals import Screen

BODY_SHA256 = hashlib.sha256(BODY).hexdigest()
LIMIT = 10**7  # bytes
Obtain = Callable[[str, str, Path], Path]
archive: Obtain = partial(fetch.obtain_archive, max_bytes=LIMIT)


def download(url: str, folder: Path, sha256: str = BODY_SHA256) -> bytes:
    """The content of a file after its download."""
    fetch.download(url, folder / "got", sha256, LIMIT, fetch.ARCHIVE)
    return (folder / "got").read_bytes()


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "WAITS", NO_WAITS)


FAILURES: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {
    "503": lambda request: reply(request, b"", 503),
    "429": lambda request: reply(request, b"", 429),
    "body cut short": lambda request: reply(request, BODY[:1000], length=len(BODY)),
    "no answer": lambda request: request.connection.close(),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_temporary_error_is_tried_again(
    failure: Callable[[BaseHTTPRequestHandler], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The file arrives if the server fails twice and then answers; each failed try is printed."""
    with server(lambda request, n: failure(request) if n <= 2 else reply(request, BODY)) as (url, paths):
        assert download(url, tmp_path) == BODY
    assert len(paths) == 3
    messages = capfd.readouterr().err
    assert [f"try {n} failed" in messages for n in (1, 2, 3)] == [True, True, False]


def test_a_download_says_where_it_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal: a bar. Elsewhere: the address at once, then lines with the bytes so far, all bytes, and speed."""
    monkeypatch.setattr(fetch, "LINE_SECONDS", 0)
    with server(lambda request, n: reply(request, BODY)) as (url, _):
        download(url, tmp_path)
        first, *lines = capfd.readouterr().err.splitlines()
        assert url in first
        assert re.fullmatch(r"download: 0\.0 of 0\.3 MB, [\d.,]+ MB/s, \d+ s", lines[0])
        screen = Screen()
        monkeypatch.setattr(sys, "stderr", screen)
        download(url, tmp_path / "other")
    assert "100%" in screen.getvalue()


@pytest.mark.parametrize("length", [None, len(BODY)], ids=["no length", "length"])
def test_a_download_that_is_too_long_ends(tmp_path: Path, length: int | None) -> None:
    """A body of more bytes than are allowed, which may be without end, is refused with the key, and nothing is kept."""

    def answer(request: BaseHTTPRequestHandler, n: int) -> None:
        request.send_response(200)
        if length:
            request.send_header("Content-Length", str(length))
        request.end_headers()
        with suppress(OSError):
            while True:
                request.wfile.write(BODY)

    with server(answer) as (url, paths), refuses(("data.url", "value")):
        fetch.obtain_archive(url, BODY_SHA256, tmp_path, 1000)
    assert (len(paths), list(tmp_path.iterdir())) == (1, [])


def test_a_download_that_drips_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends a few bytes again and again is tried as often as one that sends none, then refused."""
    monkeypatch.setattr(fetch, "STALLED", 0.2)
    monkeypatch.setattr(fetch, "SLOWEST", LIMIT)

    def answer(request: BaseHTTPRequestHandler, n: int) -> None:
        request.send_response(200)
        request.end_headers()
        with suppress(OSError):
            for _ in range(2000):
                request.wfile.write(BODY[:100])
                time.sleep(0.005)

    with server(answer) as (url, paths), refuses(("data.url", "failed")):
        fetch.obtain_archive(url, BODY_SHA256, tmp_path, 100_000)
    assert len(paths) == 5


@pytest.mark.parametrize("status", [200, 404, 503])
def test_no_password_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str], status: int) -> None:
    """The server gets the user's name, password and token; no message has them. It is asked to send no encoding."""
    requests: list[tuple[str, str | None, str | None]] = []

    def answer(request: BaseHTTPRequestHandler, n: int) -> None:
        requests.append((request.path, request.headers["Authorization"], request.headers["Accept-Encoding"]))
        reply(request, BODY if status == 200 else b"", status)

    with server(answer) as (url, _):
        secret = url.replace("://", "://anna:pass%40w0rd@") + "?token=w0rd"
        with pytest.raises(UserError) as caught:
            download(secret, tmp_path, "0" * 64)
    assert requests[0] == ("/photos.tgz?token=w0rd", "Basic YW5uYTpwYXNzQHcwcmQ=", "identity")
    text = str(caught.value) + capfd.readouterr().err
    assert url in text.replace("…@", "")
    assert not re.search("w0rd|anna", text)


@pytest.mark.parametrize(
    ("answer", "tries", "kind"),
    [
        (lambda request: reply(request, b"", 500), 5, "failed"),
        (lambda request: reply(request, b"", 404), 1, "failed"),
        (lambda request: (request.send_response(200), request.send_header("Content-Length", "abc"),
                          request.end_headers()), 1, "failed"),
        (lambda request: reply(request, BODY), 1, "differs"),
    ],
    ids=["500", "404", "no length", "another file"],
)  # fmt: skip
@pytest.mark.parametrize("obtain", [archive, fetch.obtain_weights], ids=["archive", "weights"])
def test_what_fails_for_good_leaves_no_file(
    tmp_path: Path, obtain: Obtain, answer: Callable[[BaseHTTPRequestHandler], None], tries: int, kind: Kind
) -> None:
    """After the last try, and at once for what another try does not change."""
    keys = {"failed": "data.url", "differs": "data.sha256"}
    key = keys[kind] if obtain == archive else "train.weights"
    with server(lambda request, n: answer(request)) as (url, paths), refuses((key, kind)):
        obtain(url, "0" * 10, tmp_path)
    assert len(paths) == tries
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("obtain", "digits", "name", "stage"),
    [(archive, 64, BODY_SHA256, "download"), (fetch.obtain_weights, 10, "photos.tgz", "weights")],
    ids=["archive", "weights"],  # published weights have the first digits of their hash in their address
)
def test_a_download_is_kept_and_checked_and_fetched_again_if_damaged(
    tmp_path: Path, obtain: Obtain, digits: int, name: str, stage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second time needs no network. A damaged file is named. A kill leaves no file of this name, or an old one."""
    (tmp_path / ".another.partial").write_bytes(b"of a run that was killed")
    found: list[str] = []

    def answer(request: BaseHTTPRequestHandler, n: int) -> None:
        reply(request, BODY[:200_000], length=len(BODY))
        found.extend(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))
        request.wfile.write(BODY[200_000:])

    with server(answer) as (url, paths):
        path = obtain(url, BODY_SHA256[:digits], tmp_path)
        assert obtain(url, BODY_SHA256[:digits], tmp_path) == path == tmp_path / name
        assert len(paths) == 1
        path.write_bytes(b"damaged")
        assert obtain(url, BODY_SHA256[:digits], tmp_path).read_bytes() == BODY
        assert len(paths) == 2
    assert found == []
    assert [file.name for file in tmp_path.iterdir()] == [name]
    lines = capfd.readouterr().err.splitlines()
    assert {line.partition(" ")[0] for line in lines} == {f"{stage}:"}
    assert sum(str(path) in line for line in lines) == 1


def test_a_file_that_is_refused_stays_and_is_used_with_its_own_hash(tmp_path: Path) -> None:
    """Its address may have escapes."""
    own = tmp_path / "own#1.tar"
    own.write_bytes(BODY)
    with refuses(("data.sha256", "differs")):
        fetch.obtain_archive(f"file://{own}", "0" * 64, tmp_path, LIMIT)
    for path in (str(own), quote(str(own))):
        assert fetch.obtain_archive(f"file://{path}", BODY_SHA256, tmp_path, LIMIT) == own
